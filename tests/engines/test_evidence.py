"""What failures say in numbers, in vLLM's own words."""

from pathlib import Path

import pytest

from tests.engines.test_vllm_errors import POINTER, failed
from tests.vllm_words import FREE, KV_LEN, MESSAGES
from tuner.engines.evidence import Shortage, stage_in, with_stage
from tuner.engines.vllm_errors import death, start_failure
from tuner.errors import ConfigRejected

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
LOADING = "INFO 11-30 19:20:59 [gpu_model_runner.py:5040] Starting to load model m...\n"
LOADED = "INFO 11-30 19:20:59 [default_loader.py:502] Loading weights took 1.73 seconds\n"
SIZED = "INFO 11-30 19:20:59 [kv_cache_utils.py:2328] GPU KV cache size: 815,056 tokens, \n"
CAPTURING = "\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE):  11%|#\n"


def test_a_cache_too_small_for_one_request_says_what_fits() -> None:
    said = Shortage.read(KV_LEN)
    assert (said.stage, said.fits_len) == ("kv_cache", 4096)
    assert (said.needed_gib, said.available_gib) == (9.0, 4.5)


def test_a_busy_device_says_what_was_free() -> None:
    said = Shortage.read(FREE)
    assert (said.stage, said.free_gib, said.total_gib, said.wanted_gib) == (
        "device",
        3.12,
        79.1,
        72.77,
    )


def test_words_without_numbers_say_nothing() -> None:
    assert Shortage.read("ValueError: nonsense") == Shortage()


@pytest.mark.parametrize(
    ("log", "stage"),
    [
        (LOADING, "weights"),
        (LOADING + LOADED, "activations"),
        (LOADING + LOADED + SIZED, "kv_cache"),
        (LOADING + LOADED + SIZED + CAPTURING, "graphs"),
        ("", ""),
    ],
)
def test_memory_that_runs_out_in_a_start_is_told_by_its_stage(
    tmp_path: Path, log: str, stage: str
) -> None:
    assert stage_in(log) == stage
    file = tmp_path / "engine.log"
    file.write_text(log + failed(OOM))
    error = start_failure(POINTER, file)
    assert error.reason == "out_of_memory"
    assert error.detail.startswith(OOM)
    assert Shortage.read(error.detail).stage == stage


def test_memory_that_runs_out_at_work_is_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    file.write_text(LOADING + LOADED + CAPTURING + failed(OOM))
    assert Shortage.read(death(POINTER, file).detail).stage == "replay"


def test_what_a_message_says_itself_is_not_said_again() -> None:
    assert with_stage(KV_LEN, "weights") == KV_LEN


@pytest.mark.parametrize(("text", "kind", "reason"), MESSAGES)
def test_each_class_is_known_by_vllm_s_own_words(
    text: str, kind: type, reason: str, tmp_path: Path
) -> None:
    log = tmp_path / "engine.log"
    log.write_text(failed(text))
    error = start_failure(POINTER, log)
    assert (type(error), error.reason) == (kind, reason)
    assert text.splitlines()[0] in error.detail


@pytest.mark.vllm
def test_the_words_are_those_of_the_installed_vllm() -> None:
    """Each message's fixed part stands in the sources, so that the table cannot rot unnoticed."""
    vllm = pytest.importorskip("vllm")
    root = Path(vllm.__file__).parent
    for file, *words in SOURCES:
        text = " ".join((root / file).read_text().replace('"\n', "").split())
        for fixed in words:
            assert fixed in text.replace('" f"', "").replace('" "', ""), (file, fixed)


#: File of the installed vLLM -> fixed parts of the messages that our table and readers go by.
SOURCES = [
    ("v1/core/kv_cache_utils.py", "No available memory for the cache blocks", "serve at least one"),
    ("v1/core/kv_cache_utils.py", "the estimated maximum model length is", "cache is needed"),
    ("v1/worker/utils.py", "is less than desired GPU memory utilization", "No common block size"),
    ("v1/worker/gpu_model_runner.py", "out of memory occurred when warming up sampler"),
    ("v1/worker/gpu_model_runner.py", "Starting to load model", "Model loading took"),
    ("config/parallel.py", "is larger than the number of"),
    ("config/model.py", "than the derived max_model_len"),
]


def test_every_rejection_is_a_class_of_ours() -> None:
    assert {kind for _, kind, _ in MESSAGES} >= {ConfigRejected}
