"""Prompt tokens from a trace's block ids: the same on every machine, shared where the trace shares.

A block's tokens are a stream of Philox4x64-10, a counter-based generator whose raw output numpy
keeps fixed, keyed by the first 16 bytes of SHA-256 over seed, trace digest, scope and block id.
A request's fresh tail has a stream of its own. So a prompt depends on nothing but the request and
the source's recipe: not on the order of use, the process, or the version of Python.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.config import canonical
from tuner.trace import Request

Tokens = NDArray[np.int32]
#: Changes when the same recipe would give other tokens.
VERSION = 1
#: Many vocabularies keep control tokens (unknown, begin, end, padding) in these first ids.
FIRST_ORDINARY = 10
#: Block tokens kept ready for reuse: 4 bytes each.
_CACHE_TOKENS = 4_000_000


class TokenSource:
    """Makes the prompts of one trace.

    Ordinary ids are ``FIRST_ORDINARY <= id < vocab_size`` without ``special``. Give the
    tokenizer's length as ``vocab_size`` (a model's embedding is often padded beyond it) and its
    special and added ids as ``special``. Another ``scope`` gives prompts that share nothing with
    these: "warmup" for a warm-up that must not fill the cache. ValueError for fewer than 2 ids.
    """

    def __init__(
        self,
        trace_digest: str,
        vocab_size: int,
        seed: int,
        special: Collection[int] = (),
        *,
        scope: str = "measured",
    ) -> None:
        ordinary = np.arange(vocab_size) >= FIRST_ORDINARY
        ordinary[[token for token in special if 0 <= token < vocab_size]] = False
        allowed = np.flatnonzero(ordinary).astype(np.int32)
        if len(allowed) < 2:
            raise ValueError(f"vocabulary of {vocab_size} has {len(allowed)} ordinary tokens")
        self._allowed = allowed
        self._key = canonical([VERSION, seed, trace_digest, scope]).encode()
        self._special = sorted({int(token) for token in special})
        self._recipe = [VERSION, seed, trace_digest, scope, vocab_size, self._special]
        self._philox: Any = np.random.Philox(key=0)
        #: The start of a stream: counter 0 and an empty buffer.
        self._state: Any = self._philox.state
        self._cache: OrderedDict[int, Tokens] = OrderedDict()
        self._cached_tokens = 0

    @property
    def recipe(self) -> str:
        """16 hex digits. Equal recipes give equal tokens for equal requests, at no cost.

        With the trace's digest inside it this stands for all tokens of a workload; the golden
        test pins the tokens of a recipe, ``materialized_digest`` proves it where in doubt.
        """
        return hashlib.sha256(canonical(self._recipe).encode()).hexdigest()[:16]

    def prompt(self, request: Request) -> list[int]:
        """Return the ``prompt_tokens`` token ids of a request."""
        tokens: list[int] = self.tokens(request).tolist()
        return tokens

    def tokens(self, request: Request) -> Tokens:
        """Return the same as a new int32 array."""
        out = np.empty(request.prompt_tokens, np.int32)
        at = 0
        for block, length in zip(request.blocks, request.block_tokens, strict=True):
            size = min(length, len(out) - at)
            out[at : at + size] = self._block(block, size)
            at += size
        if at < len(out):
            out[at:] = self._stream(f"request {request.id}", len(out) - at)
        return out

    def _block(self, block: int, length: int) -> Tokens:
        known = self._cache.pop(block, None)
        if known is None or len(known) < length:
            if known is not None:
                self._cached_tokens -= len(known)
            known = self._stream(f"block {block}", length)
            self._cached_tokens += len(known)
        self._cache[block] = known
        while self._cached_tokens > _CACHE_TOKENS and len(self._cache) > 1:
            self._cached_tokens -= len(self._cache.popitem(last=False)[1])
        return known[:length]

    def _stream(self, what: str, length: int) -> Tokens:
        """Return the first ``length`` tokens of a stream; a shorter ask gives the same head."""
        key = hashlib.sha256(self._key + what.encode()).digest()[:16]
        # Setting the state of one generator is ten times as fast as making a new one.
        self._state["state"]["key"][:] = np.frombuffer(key, "<u8")
        self._philox.state = self._state
        raw = self._philox.random_raw((length + 1) // 2)
        # Low half first on every machine. Multiply and shift maps 32 random bits to 0..n-1
        # without division or rejection; the bias is below n / 2**32.
        index = raw.astype("<u8", copy=False).view("<u4")[:length].astype(np.uint64)
        index *= np.uint64(len(self._allowed))
        index >>= np.uint64(32)
        tokens: Tokens = self._allowed.take(index.view(np.int64))
        return tokens


def materialized_digest(source: TokenSource, requests: Iterable[Request]) -> str:
    """Return 16 hex digits over every token of every prompt: what was truly sent."""
    hasher = hashlib.sha256()
    for request in requests:
        tokens = np.ascontiguousarray(source.tokens(request), "<i4")
        hasher.update(len(tokens).to_bytes(4, "little"))
        hasher.update(tokens.tobytes())
    return hasher.hexdigest()[:16]
