"""Ending processes: the kernel has the last word on whether one is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tuner.pools.supervisor import ProcessId

#: A look through /proc that misses everyone the first time, as one does whose parent dies then.
SCRIPT = """
import subprocess, sys
from tuner.pools import supervisor
supervisor.adopt_orphans()
command = [sys.executable, "-c", "import time; time.sleep(60)"]
child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
looks = []
def one_blind_look(spare, look=supervisor.live_descendants):
    looks.append(spare)
    return [] if len(looks) == 1 else look(spare)
supervisor.live_descendants = one_blind_look
supervisor.end_descendants(0.0, {spare})
print(child.pid)
"""


@pytest.mark.parametrize("spare", ["()", "{1}"])
def test_a_process_that_one_look_misses_is_ended_all_the_same(spare: str) -> None:
    script = SCRIPT.replace("{spare}", spare)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not Path("/proc", done.stdout.strip()).exists()


def test_a_reused_process_number_is_another_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        now = ProcessId.of(child.pid)
        assert now.alive
        assert not ProcessId(now.pid, now.created_s - 1.0).alive
    assert not now.alive
