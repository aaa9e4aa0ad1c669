"""The memory model held against the engines that were really started, in tokens of KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tuner.config import Json
from tuner.records import Measured, TrialRecord

#: Columns of the table of trials; all but the first only where the trial started an engine.
COLUMNS = ("kv_cache_tokens", "kv_formula_tokens", "kv_calibrated_tokens")


@dataclass(frozen=True, slots=True)
class Start:
    """One start of an engine. Errors are predicted / real - 1: above 0 there was less than said.

    ``calibrated``: corrected by what an earlier start of its kind taught; None before one.
    """

    words: str
    formula: float
    calibrated: float | None


def starts(records: Sequence[TrialRecord], repeats: Sequence[TrialRecord]) -> list[Start]:
    """Return all starts whose KV cache was predicted: the trials' own, then those of repeats.

    A repeat starts with its trial's configuration alone, whatever that trial was measured on.
    """
    predicted = {r.number: _facts(r).get("kv_forecast", {}) for r in records}
    found = [(f"trial {r.number}", r, predicted[r.number].get("started")) for r in records]
    for repeat in repeats:
        trial = int(repeat.point["member"])
        alone = predicted.get(trial, {}).get("alone")
        found.append((f"a repeat of trial {trial}", repeat, alone))
    return list(_starts(found))


def _starts(
    found: Sequence[tuple[str, TrialRecord, Sequence[int | None] | None]],
) -> Iterator[Start]:
    for words, record, said in found:
        real = _facts(record).get("kv_cache_tokens")
        if said and real:
            formula, calibrated = (None if n is None else n / real - 1 for n in said)
            assert formula is not None  # only the calibration may be missing
            yield Start(words, formula, calibrated)


def memory_rows(found: Sequence[Start]) -> list[tuple[str, str, str, str]]:
    """Return per kind of prediction its name, number of starts, median and worst error."""
    calibrated = [(one.words, one.calibrated) for one in found if one.calibrated is not None]
    kinds = {
        "by the formula": [(one.words, one.formula) for one in found],
        "corrected by an earlier start": calibrated,
    }
    rows = []
    for name, errors in kinds.items():
        if errors:
            words, worst = max(errors, key=lambda error: abs(error[1]))
            middle = f"{median(abs(error) for _, error in errors) * 100:.2f} %"
            rows.append((name, str(len(errors)), middle, f"{worst * 100:+.2f} % ({words})"))
    return rows


def memory_text(rows: Sequence[tuple[str, str, str, str]]) -> str:
    """Say in one sentence how far the predictions were off; '' where there were none."""
    parts = [
        f"{name} {middle} off in the median of {count} start{'s' if count != '1' else ''}, "
        f"{worst} at worst"
        for name, count, middle, worst in rows
    ]
    return f"Predicted tokens of KV cache: {'; '.join(parts)}." if parts else ""


def columns(record: TrialRecord) -> dict[str, Json]:
    """Return what ``COLUMNS`` hold for a trial; what is not known is left out."""
    facts = _facts(record)
    said = facts.get("kv_forecast", {}).get("started") or ()
    values = zip(COLUMNS, (facts.get(COLUMNS[0]), *said), strict=False)
    return {name: value for name, value in values if value is not None}


def _facts(record: TrialRecord) -> Mapping[str, Any]:
    measured = isinstance(record.outcome, Measured)
    return record.outcome.measurement.facts if measured else {}  # type: ignore[union-attr]
