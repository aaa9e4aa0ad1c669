"""What a killed driver leaves of its Ray is ended, whatever else ends meanwhile."""

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tuner.pools import ray_guard
from tuner.pools.supervisor import ProcessId


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_one_that_ends_by_itself_meanwhile_does_not_save_the_others(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    ended = ProcessId.of(gone.pid)
    gone.wait()
    there = ProcessId.of(child.pid)
    # Both seem to be alive at the first look; one is gone at the next.
    monkeypatch.setattr(ProcessId, "alive", True)
    ray_guard.end([ended, there])
    assert not psutil.pid_exists(child.pid)
