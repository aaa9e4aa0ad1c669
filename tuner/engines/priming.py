"""The first start of what has to be compiled happens once per machine, with the others waiting.

Engines that start together with one compile key would all compile, on the same cores, the same
code. The first one holds a lock until it is ready and leaves a mark in the cache; whoever waited
then loads what it compiled, and later starts do not look at the lock at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from tuner.config import Json

_CACHE_ROOT = "VLLM_CACHE_ROOT"
#: Where the marks lie, in the cache itself: who empties it takes them away, too.
_FOLDER = "tuner-primed"
#: vLLM's cache of what it found out about model classes; it depends on nothing that we vary.
_SHARED = "modelinfos"
_LOOK_S = 0.1


@contextlib.asynccontextmanager
async def first_start(key: str, env: Mapping[str, str] = os.environ) -> AsyncIterator[float]:
    """Run the body, which starts an engine of this compile key, alone if it is the first one.

    Gives the seconds waited. The first one that *succeeds* ends the waiting of all; one that fails
    leaves its place to the next. Without a cache, or where it takes no locks, nobody waits.
    """
    root = env.get(_CACHE_ROOT)
    if root is None:
        yield 0.0
        return
    mark = Path(root) / _FOLDER / key
    clock = asyncio.get_running_loop().time
    began = clock()
    async with _alone(mark):
        yield clock() - began
        with contextlib.suppress(OSError):
            mark.touch()


@contextlib.asynccontextmanager
async def _alone(mark: Path) -> AsyncIterator[None]:
    # Not a lock of its own thread: the event loop may give it back from another one.
    lock = FileLock(mark.with_name(f"{mark.name}.lock"), thread_local=False)
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        while not (mark.exists() or _taken(lock)):  # noqa: ASYNC110  # other processes tell nobody
            await asyncio.sleep(_LOOK_S)
    except (OSError, NotImplementedError):
        pass  # a file system without locks
    try:
        yield
    finally:
        # Also unlocks what the engine's processes have inherited of it.
        lock.release()


def _taken(lock: FileLock) -> bool:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    return True


def speculative_root(tokens: int, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment that gives ``tokens`` draft tokens a compile cache of their own.

    For a vLLM whose compile key leaves their number out: it would load code of another number,
    which breaks it. Empty without a cache, or where it is this one already.
    """
    root = env.get(_CACHE_ROOT)
    name = f"draft-{tokens}"
    if root is None or Path(root).name == name:
        return {}
    own = Path(root) / name
    with contextlib.suppress(OSError):
        (Path(root) / _SHARED).mkdir(parents=True, exist_ok=True)
        own.mkdir(exist_ok=True)
        (own / _SHARED).symlink_to(Path(root) / _SHARED)
    return {_CACHE_ROOT: str(own)}


def draft_tokens(args: Mapping[str, Json]) -> int | None:
    """Return the draft tokens of a configuration that compiles, None for any other."""
    spec = args.get("speculative_config")
    tokens = spec.get("num_speculative_tokens") if isinstance(spec, Mapping) else None
    return None if args.get("enforce_eager") else tokens
