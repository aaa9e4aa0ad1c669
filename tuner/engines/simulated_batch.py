"""The simulated scheduler: which request gets how many tokens in which step. Knows no clock.

Continuous batching with chunked prefill, as vLLM's scheduler does it: running requests come first,
then waiting ones while there are seats, KV cache and token budget; a request whose KV cache does
not fit any more is preempted and computed again.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tuner.config import Json
from tuner.engines.simulated_costs import DEFAULTS, Pace
from tuner.trace import Request

#: Longest stretch of like steps that is planned at once.
SPAN = 256


@dataclass(slots=True, eq=False)
class Sequence:
    """One request at the engine. ``order`` is its place in the order of arrival."""

    request: Request
    order: int
    priority: int
    cached: int | None = None
    prompt_left: int = 0
    made: int = 0
    #: KV tokens of its own (a shared prefix is not) when its present prefill ends.
    own: int = 0
    #: Step that gave the first token since the latest (re-)start, and the one of its last token.
    since: int = 0
    last: int = 0
    #: Stretches of steps [from, to) that gave a token each.
    pieces: list[tuple[int, int]] = field(default_factory=list)
    #: Its place among the waiting, the lower the sooner.
    rank: tuple[int, int] = (0, 0)

    @property
    def context(self) -> int:
        """Tokens before the next one."""
        return self.request.prompt_tokens + self.made


class Batch:
    """What waits, what is computed, and the ends of all steps since the engine was idle."""

    def __init__(self, args: Mapping[str, Json], pace: Pace, kv_tokens: int) -> None:
        self.ends: list[float] = []
        self.totals: dict[str, float] = {}
        self._kv_tokens = kv_tokens
        self._waiting: list[tuple[tuple[int, int], Sequence]] = []
        self._prefilling: list[Sequence] = []
        self._decoding: dict[int, Sequence] = {}
        self._finishing: list[tuple[int, int]] = []
        self._prefixes: OrderedDict[int, int] = OrderedDict()
        self._prefix_tokens = 0
        self._used = 0.0
        self._context = 0
        self.apply(args, pace)

    def apply(self, args: Mapping[str, Json], pace: Pace) -> None:
        """Take new arguments. Only called while idle."""
        a = {**DEFAULTS, **args}
        self._pace = pace
        self._seats = int(a["max_num_seqs"])
        self._budget = int(a["max_num_batched_tokens"])
        self._chunk = int(a["long_prefill_token_threshold"]) or self._budget
        self._block = int(a["block_size"])
        self._caching = bool(a["enable_prefix_caching"])
        self._by_priority = a["scheduling_policy"] == "priority"

    def reset(self) -> None:
        """Forget prefixes, counters and steps. Only called while idle."""
        self._prefixes.clear()
        self._prefix_tokens = 0
        self.totals.clear()
        self.ends.clear()

    @property
    def busy(self) -> bool:
        """Whether anything is to be computed."""
        return bool(self._decoding or self._prefilling or self._waiting)

    @property
    def steady(self) -> bool:
        """Whether every running request decodes and no waiting one can join."""
        return bool(self._decoding) and not self._prefilling and not self._can_admit()

    def add(self, request: Request, order: int) -> Sequence:
        """Queue a request."""
        sequence = Sequence(request, order, request.priority)
        self._wait(sequence)
        return sequence

    def drop(self, sequence: Sequence) -> None:
        """Forget a request that nobody waits for."""
        if self._decoding.pop(sequence.order, None) is not None:
            self._release(sequence, len(self.ends))
        elif sequence in self._prefilling:
            self._prefilling.remove(sequence)
            self._used -= sequence.own
        self._waiting = [entry for entry in self._waiting if entry[1] is not sequence]
        heapq.heapify(self._waiting)

    def step(self) -> float:
        """Spend one step's token budget; return its seconds. ``commit`` it with its end."""
        self._make_room()
        budget, prompt = self._budget - len(self._decoding), 0
        for sequence in self._prefilling:
            chunk = min(sequence.prompt_left, self._chunk, budget)
            sequence.prompt_left -= chunk
            budget, prompt = budget - chunk, prompt + chunk
        while budget > 0 and self._can_admit():
            sequence = self._admit()
            chunk = min(sequence.prompt_left, self._chunk, budget)
            sequence.prompt_left -= chunk
            budget, prompt = budget - chunk, prompt + chunk
        self._note_max("running_max", len(self._decoding) + len(self._prefilling))
        self._note_max("kv_usage_max_share", min(self._used / self._kv_tokens, 1.0))
        if prompt:
            return self._pace.mixed(prompt, len(self._decoding), self._context)
        return self._pace.decode(len(self._decoding)) + self._context * self._pace.kv_s

    def span(self) -> NDArray[np.float64]:
        """Return the seconds of the like steps ahead of a ``steady`` batch, shape (steps,)."""
        self._make_room()
        n = len(self._decoding)
        room = max(int((self._kv_tokens - self._used) / n), 1)
        steps = min(self._next_last() - len(self.ends) + 1, room, SPAN)
        growing = self._context + n * np.arange(steps)
        return np.asarray(self._pace.decode(n) + growing * self._pace.kv_s, np.float64)

    def commit(self, ends: list[float]) -> list[Sequence]:
        """Take the ends of the steps that were made; return the requests that are complete."""
        now = len(self.ends)
        self.ends += ends
        self._context += len(self._decoding) * len(ends)
        self._used += len(self._decoding) * len(ends)
        self._note("generated_tokens", len(self._decoding) * len(ends))
        ready = [s for s in self._prefilling if s.prompt_left == 0]
        if ready:
            self._prefilling = [s for s in self._prefilling if s.prompt_left]
        for sequence in ready:
            sequence.since = now
            sequence.last = now + sequence.request.output_tokens - sequence.made - 1
            self._decoding[sequence.order] = sequence
            heapq.heappush(self._finishing, (sequence.last, sequence.order))
            self._context += sequence.context + 1
            self._used += 1
            self._note("generated_tokens", 1)
        return self._finished()

    def _finished(self) -> list[Sequence]:
        done: list[Sequence] = []
        while self._finishing and self._finishing[0][0] < len(self.ends):
            last, order = heapq.heappop(self._finishing)
            sequence = self._decoding.get(order)
            if sequence is not None and sequence.last == last:
                del self._decoding[order]
                self._release(sequence, last + 1)
                done.append(sequence)
        return done

    def _release(self, sequence: Sequence, end: int) -> None:
        """Close the present stretch of a decoding sequence and free its KV cache."""
        sequence.pieces.append((sequence.since, end))
        made = end - sequence.since
        sequence.made += made
        self._used -= sequence.own + made
        self._context -= sequence.context

    def _next_last(self) -> int:
        while True:
            last, order = self._finishing[0]
            if order in self._decoding and self._decoding[order].last == last:
                return last
            heapq.heappop(self._finishing)

    def _can_admit(self) -> bool:
        running = len(self._decoding) + len(self._prefilling)
        if not self._waiting or running >= self._seats:
            return False
        need = self._waiting[0][1].context + self._block / 2
        return not running or self._used + need <= self._kv_tokens

    def _admit(self) -> Sequence:
        _, sequence = heapq.heappop(self._waiting)
        hit = self._hit(sequence.request)
        if sequence.cached is None:
            sequence.cached = hit
        sequence.prompt_left = max(sequence.context - hit, 1)
        sequence.own = sequence.prompt_left + self._block // 2
        self._used += sequence.own
        self._prefilling.append(sequence)
        return sequence

    def _make_room(self) -> None:
        """Preempt the last ones while the next tokens' KV cache does not fit."""
        while (
            self._used + len(self._decoding) > self._kv_tokens
            and len(self._decoding) + len(self._prefilling) > 1
        ):
            running = [*self._decoding.values(), *self._prefilling]
            sequence = max(running, key=lambda s: s.rank)
            if self._decoding.pop(sequence.order, None) is not None:
                self._release(sequence, len(self.ends))
            else:
                self._prefilling.remove(sequence)
                self._used -= sequence.own
            self._note("preemptions", 1)
            self._wait(sequence)

    def _wait(self, sequence: Sequence) -> None:
        sequence.rank = (sequence.priority if self._by_priority else 0, sequence.order)
        heapq.heappush(self._waiting, (sequence.rank, sequence))
        self._note_max("waiting_max", len(self._waiting))

    def _hit(self, request: Request) -> int:
        """Return the prompt tokens in leading blocks seen before, and remember this prompt's."""
        hit, leading = 0, True
        for block, size in zip(request.blocks, request.block_tokens, strict=True):
            leading = leading and block in self._prefixes
            hit += size if leading else 0
            if block not in self._prefixes:
                self._prefix_tokens += size
            self._prefixes[block] = size
            self._prefixes.move_to_end(block)
        while self._prefix_tokens > self._kv_tokens:
            self._prefix_tokens -= self._prefixes.popitem(last=False)[1]
        # Only whole blocks of the engine are shared.
        hit = hit // self._block * self._block if self._caching else 0
        self._note("queries", request.prompt_tokens)
        self._note("hits", hit)
        return hit

    def _note(self, name: str, value: float) -> None:
        self.totals[name] = self.totals.get(name, 0.0) + value

    def _note_max(self, name: str, value: float) -> None:
        self.totals[name] = max(self.totals.get(name, 0.0), value)
