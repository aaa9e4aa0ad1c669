"""The table of GPUs that a study can name."""

import pytest

from tuner.devices import DEVICES, known, version


@pytest.mark.parametrize("name", ["h200", "H200", "NVIDIA H200", "nvidia-h200"])
def test_a_device_is_known_by_its_short_name_and_by_its_driver_s(name: str) -> None:
    assert known(name) == DEVICES["h200"]


@pytest.mark.parametrize("name", ["", "A100", "h2000", "RTX 4090 Ti"])
def test_nothing_is_guessed(name: str) -> None:
    assert known(name) is None


def test_a_capability_is_two_numbers() -> None:
    assert version("12.0") == (12, 0)
    for wrong in ("9", "9.x", "hopper", ""):
        with pytest.raises(ValueError, match=r"looks like 9\.0"):
            version(wrong)
