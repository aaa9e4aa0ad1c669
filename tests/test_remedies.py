"""What to do about a failure follows from what it says."""

import ast
from pathlib import Path

import pytest

import tuner
from tests.vllm_words import CPU_FREE, FREE, KV_LEN, NO_BLOCKS, SAMPLER, TOO_LONG
from tuner.cli_run import tell_failures
from tuner.config import EngineConfig
from tuner.records import Infeasible, TrialRecord
from tuner.remedies import REMEDIES, remedy
from tuner.results import StudyResults

#: Errors and outcomes whose first argument is a reason.
_REASONED = {"ConfigRejected", "EngineFault", "MeasurementInvalid", "Infeasible", "Faulted"}


def reasons_in_the_code() -> set[str]:
    found = set()
    for file in Path(tuner.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _REASONED:
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant):
                    found.add(str(first.value))
    return found


def test_every_reason_has_a_remedy() -> None:
    assert reasons_in_the_code() - set(REMEDIES) == set()


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ([KV_LEN], "lower max_model_len to 4096, which fits"),
        ([KV_LEN], "raise gpu_memory_utilization by 4.50 GiB's share"),
        ([KV_LEN], "kv_cache_dtype: fp8 (half of 9.00 GiB fits in 4.50 GiB)"),
        ([KV_LEN, KV_LEN.replace("4096", "1024")], "lower max_model_len to 1024"),
        ([KV_LEN, SAMPLER], "1 x reserving the KV cache: "),
        ([NO_BLOCKS], "nothing is left for the KV cache"),
        ([SAMPLER], "lower max_num_batched_tokens and max_num_seqs"),
        ([CPU_FREE], "gpu_memory_utilization to at most 0.33 (5.2 of 15.6 GiB were free"),
        (["CUDA out of memory.\nwhen: capturing CUDA graphs"], "capture fewer sizes"),
        (["CUDA out of memory.\nwhen: loading the weights"], "raise tensor_parallel_size"),
        (["CUDA out of memory.\nwhen: answering requests"], "lower gpu_memory_utilization"),
    ],
)
def test_memory_is_answered_by_stage_and_number(details: list[str], said: str) -> None:
    assert said in remedy("out_of_memory", details)


def test_a_cache_that_fp8_does_not_save_is_said_so() -> None:
    text = KV_LEN.replace("(4.5 GiB)", "(2.0 GiB)")
    assert "is not enough by itself" in remedy("out_of_memory", [text])


def test_a_busy_gpu_is_freed_before_it_is_shared() -> None:
    assert remedy("gpu_busy", [FREE]) == (
        "end what else uses the GPU (nvidia-smi names it), or set gpu_memory_utilization to at "
        "most 0.03 (3.12 of 79.1 GiB were free, 72.77 wanted)"
    )
    known = remedy("gpu_busy", ["GPU 0: 70.0 GiB in use: PID 4711 (python) 69.5 GiB"])
    assert known == "end the processes that hold GPU memory: 4711"


@pytest.mark.parametrize(
    ("reason", "detail", "said"),
    [
        ("model_too_long", "the longest request needs 9000 tokens, max_model_len is 4096", "9000"),
        ("model_too_long", TOO_LONG, "lower max_model_len to 4096"),
        ("engine_died", "the server was ended by SIGKILL", "out-of-memory killer"),
        ("engine_died", "the server was ended by SIGSEGV", "native code"),
        ("launch_timeout", "no token within 9 s; it was still at work", "deadlines.start_s"),
    ],
)
def test_other_reasons_are_answered_by_what_they_say(reason: str, detail: str, said: str) -> None:
    assert said in remedy(reason, [detail])


def test_only_memory_failures_change_memory() -> None:
    """The kind of fault of a loop that lowers the memory share whatever fails."""
    memory = {"out_of_memory", "gpu_busy"}
    for reason in set(REMEDIES) - memory:
        for detail in ("", KV_LEN, "exit code 2", "the server was ended by SIGKILL"):
            assert "gpu_memory_utilization" not in remedy(reason, [detail])


def test_a_new_reason_is_to_be_reported() -> None:
    assert "report it" in remedy("never heard of")


def test_the_summary_of_a_run_says_what_the_numbers_ask_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tuple(
        TrialRecord(n, EngineConfig("m"), {}, Infeasible("out_of_memory", detail))
        for n, detail in enumerate([KV_LEN, KV_LEN.replace("4096", "2048")])
    )
    tell_failures(StudyResults(tmp_path, "s", (), (), records))
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("2 x out_of_memory: 2 x reserving the KV cache: lower max_model_len to")
    assert "2048, which fits" in said
