"""Every error that the tuner raises on purpose. Each one can say what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class TunerError(Exception):
    """Base of all intended errors. ``hint`` is one sentence that names the way out, or ''."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process boundaries (Ray, pipes); keep every attribute on the way.
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(
    cls: type[TunerError], args: tuple[object, ...], state: dict[str, object]
) -> TunerError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in what the user gave: ``file: field: message``."""

    file: str
    field: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.field, self.message) if part)


class StudyError(TunerError):
    """The input is wrong. Carries every problem found, not just the first. Exit code 2."""

    def __init__(self, problems: Iterable[Problem] | Problem, hint: str = "") -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(map(str, self.problems)), hint)


class SearchSpaceError(StudyError):
    """The search space is malformed."""


class TraceError(StudyError):
    """A trace cannot be read. The problem's ``field`` is the line (``line 17``)."""


class ConfigRejected(TunerError):
    """This configuration can never run here. ``reason`` is one of our short classes."""

    def __init__(self, reason: str, detail: str, hint: str = "") -> None:
        super().__init__(f"{reason}: {detail}", hint)
        self.reason = reason
        self.detail = detail


class EngineFault(TunerError):
    """The run broke; the configuration may be fine. Retried, never taught to the sampler."""

    def __init__(self, reason: str, detail: str, hint: str = "") -> None:
        super().__init__(f"{reason}: {detail}", hint)
        self.reason = reason
        self.detail = detail


class MeasurementInvalid(EngineFault):
    """We measured badly (late sends, too few requests). The engine is not to blame."""


class RequestRejected(TunerError):
    """The engine refused or broke one request. It is recorded, and the replay goes on."""


class StoreError(TunerError):
    """The stored results belong to another study definition."""
