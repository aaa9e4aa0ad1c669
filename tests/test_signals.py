"""Ctrl-C once, twice, and SIGTERM."""

import os
import signal

import pytest

from tuner.signals import TERMINATED, interruptible
from tuner.tune import StopRequest


def test_the_first_ctrl_c_asks_and_the_second_stops_and_then_nothing_cuts_cleaning_short() -> None:
    stop, said = StopRequest(), []
    before = signal.getsignal(signal.SIGINT)
    cleaned = []

    def twice_and_again_while_cleaning() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.requested
            assert "again" in said[0]
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt), interruptible(stop, said.append):
        twice_and_again_while_cleaning()
    assert cleaned
    assert signal.getsignal(signal.SIGINT) is before


def test_terminate_ends_with_the_shells_code() -> None:
    with pytest.raises(SystemExit) as ended, interruptible(StopRequest(), print):
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == TERMINATED == 143
