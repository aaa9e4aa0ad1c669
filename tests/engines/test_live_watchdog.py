"""An engine process ends with its parent, however that one ends."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.processes import runs, until

_SCRIPT = """
import multiprocessing, sys, time
from tuner.engines.live import watchdog

def worker():
    time.sleep(600)

def engine(told):
    watched = watchdog.start() and watchdog.start()
    child = multiprocessing.get_context("fork").Process(target=worker)
    child.start()
    told.send((watched, multiprocessing.current_process().pid, child.pid))
    time.sleep(600)

if __name__ == "__main__":
    method, name = sys.argv[1:]
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    context.Process(target=engine, args=(theirs,), name=name).start()
    # A sibling that inherits the parent's end of the pipe that the engine watches.
    multiprocessing.get_context("fork").Process(target=worker).start()
    print(*ours.recv(), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_it_ends_with_its_children_when_its_parent_is_killed(tmp_path, method: str) -> None:
    script = tmp_path / "front_end.py"
    script.write_text(_SCRIPT)
    command = [sys.executable, str(script), method, "EngineCore"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as front:
        watched, *pids = front.stdout.readline().split()
        assert watched == "True"
        processes = [psutil.Process(int(pid)) for pid in pids]
        everyone = psutil.Process(front.pid).children(recursive=True)
        os.kill(front.pid, signal.SIGKILL)
    try:
        until(lambda: not any(map(runs, processes)), timeout_s=10, what="the engine ends")
    finally:
        for process in filter(runs, everyone):
            process.kill()


def test_other_processes_are_not_watched(tmp_path) -> None:
    script = tmp_path / "front_end.py"
    script.write_text(_SCRIPT)
    command = [sys.executable, str(script), "fork", "SomethingElse"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as front:
        watched, *_ = front.stdout.readline().split()
        everyone = psutil.Process(front.pid).children(recursive=True)
        for process in (psutil.Process(front.pid), *everyone):
            process.kill()
    assert watched == "False"


def test_it_can_be_switched_off(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_PARENT_WATCHDOG", "0")
    script = tmp_path / "front_end.py"
    script.write_text(_SCRIPT)
    command = [sys.executable, str(script), "fork", "EngineCore"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as front:
        watched, *_ = front.stdout.readline().split()
        everyone = psutil.Process(front.pid).children(recursive=True)
        for process in (psutil.Process(front.pid), *everyone):
            process.kill()
    assert watched == "False"
