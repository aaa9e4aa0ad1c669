"""Failures in vLLM's words become rejections and faults in ours, with the cause as evidence."""

from pathlib import Path

import pytest

from tuner.engines.vllm_errors import death, message_of, refusal, root_cause, start_failure
from tuner.errors import ConfigRejected, EngineFault

POINTER = RuntimeError("Engine core initialization failed. See root cause above.")


def worker(text: str, place: str = "multiproc_executor.py:950") -> str:
    head = f"(Worker pid=7) ERROR 11-30 19:21:00 [{place}] "
    return "".join(f"{head}{line}\n" for line in text.splitlines())


def failed(cause: str) -> str:
    """A log as an engine leaves it whose worker broke: the cause, then those who waited for it."""
    traceback = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n'
    core = (
        "(EngineCore pid=5) Traceback (most recent call last):\n"
        '(EngineCore pid=5)   File "y.py", line 2, in h\n'
        "(EngineCore pid=5)     raise e from None\n"
        "(EngineCore pid=5) Exception: WorkerProc initialization failed due to an exception\n"
    )
    info = "(EngineCore pid=5) INFO 11-30 19:20:59 [core.py:133] Initializing\n"
    last = worker("Worker proc VllmWorker-0 died unexpectedly", "multiproc_executor.py:300")
    return info + worker(traceback + cause) + last + core


@pytest.mark.parametrize(
    ("cause", "kind", "reason"),
    [
        ("ValueError: No available memory for the cache blocks.", ConfigRejected, "out_of_memory"),
        (
            "ValueError: To serve at least one request with the model's max seq len (8192), 9 GiB",
            ConfigRejected,
            "out_of_memory",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
            ConfigRejected,
            "out_of_memory",
        ),
        (
            "ValueError: Free memory on device cuda:0 (3/80 GiB) on startup is less than desired",
            EngineFault,
            "gpu_busy",
        ),
        (
            "ValueError: No common block size for 8 (CPU_ATTN: [MultipleOf(32)]).",
            ConfigRejected,
            "unsupported_by_hardware",
        ),
        ("OSError: [Errno 98] Address already in use", EngineFault, "port_taken"),
        ("RuntimeError: something that nobody has seen", EngineFault, "unknown"),
    ],
)
def test_a_failed_start_has_the_reason_of_its_root_cause(
    cause: str, kind: type, reason: str, tmp_path: Path
) -> None:
    log = tmp_path / "engine.log"
    log.write_text(failed(cause))
    error = start_failure(POINTER, log)
    assert type(error) is kind
    assert (error.reason, error.detail) == (reason, cause)


def test_the_root_cause_is_the_first_exception_with_its_whole_message() -> None:
    cause = (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for X\n  Value error, a"
    )
    assert root_cause(failed(cause)).splitlines()[1].strip() == "a"


def test_a_logged_message_without_a_traceback_is_no_cause() -> None:
    log = "(A pid=1) WARNING 11-30 19:21:00 [a.py:1] OSError: harmless\nValueError: also printed\n"
    assert root_cause(log) == ""


def test_an_unknown_failure_keeps_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("the last thing it said\n")
    error = start_failure(POINTER, log)
    assert isinstance(error, EngineFault)
    assert "the last thing it said" in error.detail


def test_a_missing_log_is_survived(tmp_path: Path) -> None:
    assert start_failure(POINTER, tmp_path / "none").reason == "unknown"


def test_what_an_earlier_engine_left_in_the_log_is_no_evidence(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    earlier = failed("ValueError: No common block size for 8")
    log.write_text(earlier + failed("ValueError: No available memory for the cache blocks."))
    assert start_failure(POINTER, log, len(earlier)).reason == "out_of_memory"


def test_an_engine_that_dies_at_work_is_a_fault_unless_memory_ran_out(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(failed("ValueError: No common block size for 8"))
    assert death(POINTER, log).reason == "engine_died"
    log.write_text(failed("torch.OutOfMemoryError: CUDA out of memory."))
    assert isinstance(death(POINTER, log), ConfigRejected)


def test_a_refused_build_is_a_rejection_and_a_broken_network_is_not() -> None:
    assert refusal(ValueError("nonsense")).reason == "invalid_arguments"
    assert isinstance(refusal(ValueError("nonsense")), ConfigRejected)
    assert isinstance(refusal(ConnectionResetError("peer")), EngineFault)


def test_pydantic_s_frame_is_taken_off() -> None:
    class ValidationError(ValueError):
        def errors(self) -> list[dict[str, object]]:
            return [
                {"msg": "Value error, a must be b", "loc": ()},
                {"msg": "Input should be greater than 0", "loc": ("k",)},
            ]

    assert message_of(ValidationError()) == "a must be b; k: Input should be greater than 0"
