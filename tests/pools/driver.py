"""A driver for the tests of endings: ``python -m tests.pools.driver DIRECTORY``.

Obeys one command per line of its input and answers each with one line of JSON. Handles signals as
the command line does: SIGTERM leaves, the first SIGINT is only noted.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tests.pools.fakes import a_job, a_spec
from tuner.pools.ray import RayPool
from tuner.pools.slots import Capacity
from tuner.records import Faulted, Measured

interrupts: list[int] = []


def leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(directory: Path) -> None:
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    with RayPool(a_spec(), Capacity(gpus=1), stop_grace_s=5.0) as pool:
        say(ready=True)
        for line in sys.stdin:
            obey(pool, directory, json.loads(line))


def obey(pool: RayPool, directory: Path, command: dict[str, Any]) -> None:
    match command.pop("command"):
        case "submit":
            pool.submit(a_job(command.pop("number"), directory, **command))
            say(busy=pool.busy)
        case "collect":
            done = pool.collect(command["timeout_s"])
            if done is None:
                say(number=None, interrupts=len(interrupts))
                return
            job, outcome, _ = done
            reason = outcome.reason if isinstance(outcome, Faulted) else ""
            measured = isinstance(outcome, Measured)
            say(number=job.number, measured=measured, reason=reason, interrupts=len(interrupts))
        case "raise":
            raise LookupError("a bug in the driver")


def say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
