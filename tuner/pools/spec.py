"""What an engine host needs to know before its first job, and how names become objects."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import tuner
from tuner.config import Json
from tuner.engines import Launcher
from tuner.engines.keeping import KeepingLauncher
from tuner.engines.metered import MeteredLauncher
from tuner.errors import TunerError
from tuner.job import Job
from tuner.records import Cost, Outcome

T = TypeVar("T")
OnPhase = Callable[[str], None]
Evaluate = Callable[[Job, Launcher, OnPhase], Awaitable[tuple[Outcome, Cost]]]

#: Launchers by the name that a study file uses. Anything else is an import path.
LAUNCHERS = {
    "vllm": "tuner.engines.vllm:VllmLauncher",
    "server": "tuner.engines.server:ServerLauncher",
    "simulated": "tuner.engines.simulated:SimulatedLauncher",
}


@dataclass(frozen=True, slots=True)
class HostSpec:
    """Which launcher a host uses, and the environment in which it starts."""

    #: A name of ``LAUNCHERS`` or ``package.module:factory``.
    launcher: str
    #: Keyword arguments of the factory.
    options: Mapping[str, Json] = field(default_factory=dict)
    #: Variables set for the host and all that it starts.
    env: Mapping[str, str] = field(default_factory=dict)
    evaluate: str = "tuner.evaluate:evaluate"
    #: Arguments that a live engine can change; none: every job starts an engine of its own.
    hot: frozenset[str] = frozenset()
    #: Hot argument -> the largest value that any job will ask for.
    maxima: Mapping[str, Json] = field(default_factory=dict)
    #: Whether the engines run on GPUs, which are watched during replays then.
    on_gpus: bool = False

    def make_launcher(self) -> Launcher:
        """Build the launcher. Raises TunerError for a name that leads nowhere."""
        factory = imported(LAUNCHERS.get(self.launcher, self.launcher))
        launcher = cast(Launcher, factory(**self.options))
        launcher = MeteredLauncher(launcher) if self.on_gpus else launcher
        return KeepingLauncher(launcher, self.hot, self.maxima) if self.hot else launcher

    def load_evaluate(self) -> Evaluate:
        """Return the coroutine function that turns a job into an outcome."""
        return cast(Evaluate, imported(self.evaluate))


def imported(path: str) -> Any:
    """Return the object at ``package.module:name``. Raises TunerError where there is none."""
    module, _, name = path.partition(":")
    if not name:
        known = ", ".join(LAUNCHERS)
        raise TunerError(f"no engine kind {path!r}", f"use one of {known}, or 'module:factory'")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        hint = "check the name, and that its package is installed"
        raise TunerError(f"cannot load {path!r}: {error}", hint) from error


class RunLoop(Protocol):
    """Runs coroutines to their end, one after another."""

    def __call__(self, main: Coroutine[Any, Any, T], /) -> T:
        """Run one coroutine and return its result."""


def import_path(environment: Mapping[str, str]) -> str:
    """Return a PYTHONPATH with which another process finds this package where we found it."""
    root = str(Path(tuner.__file__).parent.parent)
    return os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))


@contextlib.contextmanager
def loop_of(launcher: Launcher) -> Iterator[RunLoop]:
    """Give an event loop as the launcher wants it (``loop_factory``: virtual time), else a uvloop.

    All coroutines share that loop, so that an engine may stay alive between jobs.
    """
    from tuner.engines.http_loop import PreciseLoop

    factory = getattr(launcher, "loop_factory", None) or PreciseLoop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner.run


async def closed(launcher: Launcher) -> None:
    """End what a launcher keeps alive between jobs, if it keeps anything (``aclose``)."""
    close = getattr(launcher, "aclose", None)
    if close is not None:
        await close()
