"""What ``tuner check`` prints of the memory model."""

from pathlib import Path

import pytest

from tests.study_case import load
from tuner.cli_check_memory import tell_memory
from tuner.config import Json
from tuner.devices import GIB
from tuner.preview import Preview

DEFAULTS: dict[str, Json] = {
    "label": "defaults",
    "attention": "FLASH_ATTN",
    "fit": "fits",
    "detail": "",
    "calibrated": False,
    "gpu_bytes": 140 * GIB,
    "weight_bytes": 15 * GIB,
    "activation_bytes": 3 * GIB,
    "kv_cache_bytes": 110 * GIB,
    "kv_cache_tokens": 804_336,
    "requests_at_once": {"mean": 512, "p99": 191},
}


def told(folder: Path, capsys: pytest.CaptureFixture[str], *configurations: Json) -> str:
    memory = {
        "request_tokens": {"mean": 1552.0, "p99": 4199.0, "longest": 5000.0},
        "configurations": list(configurations),
        "space": {"kv_cache_tokens": [700, 804_704], "requests_at_once.mean": [8, 8]},
    }
    workload = load(folder).workload()
    tell_memory(Preview(1, 1, [], [], workload, memory=memory))
    return " ".join(capsys.readouterr().out.split())


def test_the_three_questions_are_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.cli.out._width", 200)
    said = told(tmp_path, capsys, DEFAULTS)
    assert "defaults fits 15.00 GiB 3.00 GiB (formula) 110.00 GiB 804,336 512 191" in said
    assert "a request has 1,552 tokens in the mean, 4,199 at P99" in said
    assert "over the space: 700 to 804,704 tokens of KV cache, 8 requests at once" in said


def test_what_does_not_fit_says_why_and_what_is_not_modelled_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = {**DEFAULTS, "fit": "does not fit", "detail": "weights 15.00 GiB + ...: do this"}
    unknown = {"label": "with LoRA", "not_modelled": "LoRA"}
    said = told(tmp_path, capsys, tight, unknown)
    assert "weights 15.00 GiB + ...: do this" in said
    assert "memory not predicted (with LoRA): LoRA" in said
