"""The engine host: one plain process that imports vLLM once and serves many jobs.

Started by the supervisor as ``python -m tuner.pools.host MESSAGES GUARD`` (two inherited
descriptors). It is not a Ray process, so vLLM forks its engine cheaply instead of spawning it. It
ends itself with all its descendants when either descriptor closes: the worker or the supervisor
is gone then.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tuner.job import Job
from tuner.pools.messages import Done, Phase, Ready, Run, Stop
from tuner.pools.spec import HostSpec, closed, loop_of
from tuner.pools.supervisor import adopt_orphans, end_descendants
from tuner.records import Cost, Faulted

#: The file in a job's directory that takes what the host prints.
LOG_NAME = "host.log"
#: Cores this host and its engine may use, comma separated; all where unset.
CORES_VARIABLE = "TUNER_CORES"


class Inbox:
    """Messages of the worker, read in a thread so that a stop gets through to a running job."""

    def __init__(self, messages: Connection, guard: int) -> None:
        self._messages = messages
        self._guard = guard
        self._queue: queue.SimpleQueue[HostSpec | Run | Stop] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        self._on_stop: Callable[[], object] | None = None

    def open(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def get(self) -> HostSpec | Run | Stop:
        """Wait for the next message."""
        return self._queue.get()

    def on_stop(self, call: Callable[[], object] | None) -> None:
        """Set what a stop calls (from the reading thread); at once if it came already."""
        with self._lock:
            self._on_stop = call
            if self._stopped and call is not None:
                call()

    def _read(self) -> None:
        while self._guard not in wait([self._messages, self._guard]):
            try:
                message = pickle.loads(self._messages.recv_bytes())
            except (EOFError, OSError):
                break
            if isinstance(message, Stop):
                self._stop()
            self._queue.put(message)
        end_descendants(grace_s=2.0)
        os.kill(os.getpid(), signal.SIGKILL)

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._on_stop is not None:
                self._on_stop()


class Host:
    """Serves one worker's jobs, one after another, on one launcher."""

    def __init__(self, spec: HostSpec, messages: Connection, inbox: Inbox) -> None:
        self._messages = messages
        self._inbox = inbox
        self._launcher = spec.make_launcher()
        self._evaluate = spec.load_evaluate()

    def serve(self) -> None:
        """Answer each ``Run`` with phases and a ``Done``, until told to stop."""
        with loop_of(self._launcher) as run:
            self._send(Ready())
            while isinstance(message := self._inbox.get(), Run):
                print_to(Path(message.job.directory))
                self._send(run(self._measure(message.job)))
            run(closed(self._launcher))

    async def _measure(self, job: Job) -> Done:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(self._evaluate(job, self._launcher, self._phase))
        self._inbox.on_stop(lambda: loop.call_soon_threadsafe(task.cancel))
        try:
            return Done(*await task)
        except asyncio.CancelledError:
            return Done(Faulted("cancelled", "stopped before it was done"), Cost())
        except Exception:
            # A fault of ours: the study goes on, and the trace back reaches whoever reads it.
            return Done(Faulted("host_error", traceback.format_exc(limit=-8)), Cost())
        finally:
            self._inbox.on_stop(None)

    def _phase(self, name: str) -> None:
        self._send(Phase(name))

    def _send(self, message: Ready | Phase | Done) -> None:
        self._messages.send_bytes(pickle.dumps(message))


def print_to(directory: Path) -> None:
    """Send this process's standard output and error to the log in ``directory`` from now on."""
    directory.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with (directory / LOG_NAME).open("ab") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())


def main(arguments: Sequence[str]) -> int:
    """Serve the worker behind the descriptors MESSAGES and GUARD."""
    if cores := os.environ.get(CORES_VARIABLE):
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    adopt_orphans()
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is the driver's to handle
    descriptors = [int(argument) for argument in arguments]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    messages = Connection(descriptors[0])
    inbox = Inbox(messages, descriptors[1])
    inbox.open()
    spec = inbox.get()
    assert isinstance(spec, HostSpec)
    Host(spec, messages, inbox).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
