"""vLLM's failures in our terms: translated once, here, by a table, with the log as evidence.

Needs no vLLM: it reads exception texts and logs. What a failure *means* decides what happens next:
a rejected configuration is taught to the search, a fault is tried again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuner.engines.evidence import stage_in, with_stage
from tuner.errors import ConfigRejected, EngineFault

#: Bytes of a log's end that are read for evidence; an engine that dies says why at the end.
TAIL_BYTES = 400_000
_TAIL_LINES = 30

# Text of the root cause -> our reason. The first match counts, so the narrow ones come first.
_REJECTED = "rejected"
_FAULT = "fault"
_TABLE: tuple[tuple[str, str, str], ...] = (
    # Who holds the memory besides us may let go of it: weather.
    (_FAULT, "gpu_busy", r"Free memory on device .*less than (desired|the engine's budget)"),
    (_FAULT, "port_taken", r"Address already in use|EADDRINUSE"),
    # On the CPU the engine shares its memory with the system, always: not a passing state.
    (_REJECTED, "out_of_memory", r"Available memory on node .*(less than desired|less than requ)"),
    (_REJECTED, "out_of_memory", r"No available memory for the cache blocks"),
    (_REJECTED, "out_of_memory", r"To serve at least one request with the models?.s max seq len"),
    (_REJECTED, "out_of_memory", r"larger than the maximum number of tokens that can be stored"),
    (_REJECTED, "out_of_memory", r"(CUDA|HIP|XPU) out of memory|CUDA error: out of memory"),
    (_REJECTED, "out_of_memory", r"OutOfMemoryError|can't allocate memory|Cannot allocate memory"),
    (_REJECTED, "model_too_long", r"max_model_len .*is greater than the derived max_model_len"),
    (_REJECTED, "model_not_found", r"not a valid model identifier|Repository Not Found"),
    (_REJECTED, "model_not_found", r"does not appear to have a file named|couldn't find them in"),
    (_REJECTED, "model_not_found", r"Can't load the configuration of|Repo id must"),
    (_REJECTED, "unsupported_by_hardware", r"No common block size|multiples? of 32"),
    (_REJECTED, "unsupported_by_hardware", r"[Cc]ompute capability|Minimum capability"),
    (_REJECTED, "unsupported_by_hardware", r"No valid .*backend|Invalid attention backend for"),
    (_REJECTED, "unsupported_by_hardware", r"Selected backend .*is not valid for this config"),
    (_REJECTED, "unsupported_by_hardware", r"quantization is currently not supported in"),
    (
        _REJECTED,
        "unsupported_by_hardware",
        r"not supported (on|by) (the )?(CPU|CUDA|GPU|current|this)",
    ),
    (
        _REJECTED,
        "unsupported_by_hardware",
        r"World size .*larger than .*available|enough allowed NUMA",
    ),
    (
        _REJECTED,
        "unsupported_by_hardware",
        r"only (available|supported) on (CUDA|ROCm|CPU|GPU|Hopper)",
    ),
    (_REJECTED, "unsupported_by_hardware", r"not supported for the current platform"),
)
# Exceptions that a configuration is refused with when vLLM builds it, before anything starts.
_REFUSALS = (ValueError, TypeError, NotImplementedError, AssertionError, KeyError, AttributeError)

# Lines that only point to another line.
_POINTERS = re.compile(
    r"See root cause above|initialization failed|See stack trace|The above exception|"
    r"During handling of|leaked (semaphore|shared_memory)"
)
_PREFIX = re.compile(
    r"^(?:\((?P<process>[^)]*pid=\d+)\)\s+)?"
    r"(?:(?P<level>[A-Z]+) \d\d-\d\d [\d:]{8} \[(?P<place>[^\]]*)\] ?)?"
)
_EXCEPTION = re.compile(r"^[\w.]*(?:Error|Exception|Exit|Interrupt)\b(?:: .*|:)?$")
_PYDANTIC_TAIL = re.compile(r"\s*\[type=\w+, input_value=.*|^\s*For further information visit .*")


def refusal(error: BaseException) -> ConfigRejected | EngineFault:
    """Translate what vLLM raised while it built a configuration; nothing was started."""
    detail = message_of(error)
    known = _classified(detail)
    if known is not None:
        return known
    if isinstance(error, _REFUSALS):
        return ConfigRejected("invalid_arguments", detail)
    return EngineFault("unknown", f"{type(error).__name__}: {detail}")


def start_failure(
    error: BaseException, log: str | Path, since: int = 0
) -> ConfigRejected | EngineFault:
    """Translate what vLLM raised while an engine started; the log knows the cause.

    ``since``: where in the log this engine's part begins, in bytes.
    """
    text = tail_of(log, since)
    detail = root_cause(text) or message_of(error)
    known = _classified(detail)
    if known is not None:
        return _staged(known, stage_in(text.partition(detail.split("\n", 1)[0])[0]))
    if not root_cause(text):
        detail = f"{detail}\n{last_lines(text)}".strip()
    return EngineFault("unknown", detail)


def death(error: BaseException, log: str | Path, since: int = 0) -> ConfigRejected | EngineFault:
    """Translate the end of an engine that was running: the log's cause, else its last lines.

    Memory that runs out under load is the configuration's fault, anything else may be weather.
    """
    text = tail_of(log, since)
    detail = root_cause(text) or f"{message_of(error)}\n{last_lines(text)}".strip()
    known = _classified(detail)
    if isinstance(known, ConfigRejected) and known.reason == "out_of_memory":
        return _staged(known, "replay")
    return EngineFault("engine_died", detail)


def _staged(known: ConfigRejected | EngineFault, stage: str) -> ConfigRejected | EngineFault:
    """Return a memory failure with the stage at which it came; any other one as it is."""
    if known.reason != "out_of_memory":
        return known
    return type(known)(known.reason, with_stage(known.detail, stage), known.hint)


def message_of(error: BaseException) -> str:
    """Return an exception's own words, without pydantic's frame around them."""
    listed = getattr(error, "errors", None)
    if callable(listed) and type(error).__name__ == "ValidationError":
        return "; ".join(_said(item) for item in listed())
    return str(error) or type(error).__name__


def _said(item: dict[str, object]) -> str:
    message = str(item["msg"])
    for frame in ("Value error, ", "Assertion failed, "):
        message = message.removeprefix(frame)
    location = item.get("loc")
    where = ".".join(map(str, location)) if isinstance(location, tuple) else ""
    return f"{where}: {message}" if where else message


def root_cause(text: str) -> str:
    """Return the first exception in a log that is not a mere pointer to another, '' if none.

    Python prints the cause before its consequences, and a worker before the process that waits
    for it. A message of several lines is returned whole.
    """
    lines = [_Line.read(line) for line in text.splitlines()]
    for at, line in enumerate(lines):
        if line.may_name_cause and _in_traceback(lines, at):
            return unframed("\n".join([line.text, *_continued(lines, at + 1)]))
    return ""


@dataclass(frozen=True, slots=True)
class _Line:
    """A log line: which record it is part of ('' for plain output), its level, its words."""

    record: str
    level: str
    text: str

    @classmethod
    def read(cls, line: str) -> _Line:
        found = _PREFIX.match(line)
        assert found is not None  # both halves may be absent
        record = " ".join(filter(None, (found["process"], found["place"])))
        return cls(record, found["level"] or "", line[found.end() :])

    @property
    def may_name_cause(self) -> bool:
        names = _EXCEPTION.match(self.text) and not _POINTERS.search(self.text)
        return self.level in ("", "ERROR") and bool(names)


def _in_traceback(lines: list[_Line], at: int) -> bool:
    """Whether an indented line of a traceback comes before this one."""
    before = [line.text for line in lines[max(0, at - 3) : at]]
    return any(text.startswith(("  ", "Traceback")) for text in before)


def _continued(lines: list[_Line], at: int) -> Iterator[str]:
    record = lines[at - 1].record
    for line in lines[at : at + 20]:
        ends = not line.text.strip() or line.text.startswith(("Traceback", "[rank", "ERROR "))
        if line.record != record or ends or line.may_name_cause or _POINTERS.search(line.text):
            return
        yield line.text


def unframed(text: str) -> str:
    """Return a printed error without the lines and marks that pydantic puts around it."""
    kept = (_PYDANTIC_TAIL.sub("", line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in kept if line).replace("Value error, ", "")


def tail_of(log: str | Path, since: int = 0) -> str:
    """Return the end of a log file from byte ``since`` on, '' where there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(0, 2)
            file.seek(max(since, file.tell() - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_lines(text: str, count: int = _TAIL_LINES) -> str:
    """Return the last lines of a text."""
    return "\n".join(text.splitlines()[-count:])


def _classified(detail: str) -> ConfigRejected | EngineFault | None:
    for kind, reason, pattern in _TABLE:
        if re.search(pattern, detail, re.DOTALL):
            return (ConfigRejected if kind == _REJECTED else EngineFault)(reason, detail)
    return None
