"""Prompts of a replay, made ahead of their time while there is time to spare."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tuner.trace import Request

#: Makes the token ids of a request.
Prompts = Callable[[Request], Sequence[int]]

#: Prompts are made ahead up to this many tokens and requests.
AHEAD_TOKENS = 4_000_000
AHEAD_REQUESTS = 4096
#: A prompt is made ahead where its expected cost and this much time fit before the next send.
PREPARE_MARGIN_S = 0.0005


class Ahead:
    """Requests in order with their prompts, prepared up to a bound."""

    def __init__(
        self, prompts: Prompts, requests: Iterator[Request], clock: Callable[[], float]
    ) -> None:
        self._prompts = prompts
        self._requests = requests
        self._clock = clock
        self._next = next(requests, None)
        self._ready: deque[tuple[Request, Sequence[int]]] = deque()
        self._tokens = 0
        #: Of the prompts made so far.
        self._spent_s = 0.0
        self._made_tokens = 1

    def fits(self, spare_s: float) -> bool:
        """Whether the next prompt can be made in this time, going by those made so far."""
        if self._next is None:
            return False
        expected_s = self._next.prompt_tokens * self._spent_s / self._made_tokens
        return expected_s + PREPARE_MARGIN_S < spare_s

    def prepare(self) -> bool:
        """Prepare one more; False when nothing is left or the bound is reached."""
        request = self._next
        full = self._tokens > AHEAD_TOKENS or len(self._ready) >= AHEAD_REQUESTS
        if request is None or full:
            return False
        began = self._clock()
        self._ready.append((request, self._prompts(request)))
        self._spent_s += self._clock() - began
        self._made_tokens += request.prompt_tokens
        self._tokens += request.prompt_tokens
        self._next = next(self._requests, None)
        return True

    def due_s(self) -> float | None:
        """Arrival of the next request, None when none is left."""
        if not self._ready:
            self.prepare()
        return self._ready[0][0].arrival_s if self._ready else None

    def pop(self) -> tuple[Request, Sequence[int]]:
        request, prompt = self._ready.popleft()
        self._tokens -= request.prompt_tokens
        return request, prompt
