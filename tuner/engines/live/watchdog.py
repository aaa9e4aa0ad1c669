"""Ends an engine process whose parent is gone. Runs inside EngineCore, standard library only.

vLLM's engine process does not notice that its front end was killed: it would go on holding its GPU.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection

#: Set to 0 to leave engine processes alone.
SWITCH = "TUNER_PARENT_WATCHDOG"
_LOOK_S = 1.0
_watching: set[int] = set()


def start() -> bool:
    """Watch the parent from a thread, if this is an engine process; once per process.

    Not PR_SET_PDEATHSIG: that signal already comes when the *thread* that forked ends.
    """
    parent = multiprocessing.parent_process()
    is_engine = multiprocessing.current_process().name.startswith("EngineCore")
    if parent is None or not is_engine or os.environ.get(SWITCH) == "0":
        return False
    if os.getpid() not in _watching:
        _watching.clear()  # entries of the process that forked this one
        _watching.add(os.getpid())
        arguments = (parent.sentinel, os.getppid())
        threading.Thread(target=_watch, args=arguments, daemon=True, name="tuner-watchdog").start()
    return True


def _watch(sentinel: int, parent: int) -> None:
    # The sentinel's other end may live on in siblings that were forked with it: look at the
    # parent's number, too.
    while os.getppid() == parent and not connection.wait([sentinel], _LOOK_S):
        pass
    for child in multiprocessing.active_children():
        child.kill()
    os.kill(os.getpid(), signal.SIGKILL)
