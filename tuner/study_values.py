"""Single values as people write them: numbers with suffixes, switches, text, engine arguments."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from tuner.config import Json
from tuner.yaml_file import Plain, nearest

#: vLLM's own reading: k = 1000, K = 1024. Ki is understood too, and means 1024.
SUFFIXES = {
    **{letter: 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{letter: 1024**power for power, letter in enumerate("KMGT", start=1)},
    **{letter + "i": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
#: The largest whole number that a float, and so a storage, holds exactly.
LARGE = 2**53
#: The strategy of a study that names none: ``strategies.table.DEFAULT``.
STRATEGY = "priced"
_WITH_SUFFIX = re.compile(r"([+-]?\d[\d_]{0,30}(?:\.\d{1,30})?)([kmgtKMGT]i?)")
#: What YAML 1.1 takes for a boolean and YAML 1.2 for text.
_ON = {"on", "yes", "y"}
_OFF = {"off", "no", "n"}
_TRUTH = {"true": True, "false": False}


def show(value: Json) -> str:
    """Return a value as it could stand in a message: short, as YAML would have it."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, bool | str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def with_suffix(text: str) -> int | None:
    """Return 8000 for '8k', 8192 for '8K'; None for text of another form. Raises ValueError."""
    match = _WITH_SUFFIX.fullmatch(text.strip())
    if match is None:
        return None
    number, suffix = match.groups()
    factor = SUFFIXES.get(suffix)
    if factor is None:
        raise ValueError(f"{text}: the suffix {suffix} is not known; K or Ki is 1024, k is 1000.")
    if "." in number and factor % 1000:
        low = f"{number}{suffix[0].lower()}"
        raise ValueError(f"{text}: decimals go with powers of 1000; write {low}.")
    product = Decimal(number.replace("_", "")) * factor
    if product != int(product):
        raise ValueError(f"{text} is not a whole number.")
    return int(product)


def whole(value: Json) -> int:
    """Return a whole number written as 4096, 4e3, 4k, 4K or the same in quotes."""
    if isinstance(value, str):
        suffixed = with_suffix(value)
        if suffixed is not None:
            return suffixed
        value = _decimal(value, "a whole number")
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError(f"needs a whole number, found {show(value)}.")
    if value != int(value):
        raise ValueError(f"needs a whole number, found {value}.")
    if abs(int(value)) > LARGE:
        raise ValueError(f"needs a whole number up to {LARGE}, found {float(value):.3g}.")
    return int(value)


def real(value: Json) -> float:
    """Return a finite number written as 0.5, 5e-1 or the same in quotes."""
    if isinstance(value, str):
        suffixed = with_suffix(value)
        value = suffixed if suffixed is not None else _decimal(value, "a number")
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError(f"needs a number, found {show(value)}.")
    if not math.isfinite(float(value)):
        raise ValueError(f"needs a finite number, found {value}.")
    return float(value)


def _decimal(text: str, wanted: str) -> Decimal:
    try:
        number = Decimal(text.strip().replace("_", ""))
    except InvalidOperation:
        raise ValueError(f"needs {wanted}, found the text {show(text)}.") from None
    if not number.is_finite() or number.adjusted() > 300:
        raise ValueError(f"needs {wanted} of a sane size, found {show(text)}.")
    return number


def flag(value: Json) -> bool:
    """Return a boolean; only true and false will do."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _ON | _OFF | _TRUTH.keys():
            meant = "true" if word in _ON | {"true"} else "false"
            raise ValueError(f"needs true or false, found the text {show(value)}: write {meant}.")
    raise ValueError(f"needs true or false, found {show(value)}.")


def text(value: Json) -> str:
    """Return non-empty text."""
    if isinstance(value, str) and value.strip():
        return str(value)
    if isinstance(value, bool | int | float):
        raise ValueError(f"needs text, found {show(value)}: quote it if it is meant as text.")
    raise ValueError(f"needs text, found {show(value)}.")


def environment_value(value: Json) -> str:
    """Return what an environment variable is set to; a number is taken as written."""
    if isinstance(value, bool):
        raise ValueError(f"an environment variable is text: write '{int(value)}' or '{value}'.")
    return str(value) if isinstance(value, int | float | str) else text(value)


def argument(value: Json) -> Json:
    """Return an engine argument's value: 8k is a number; an unquoted on, off, yes, no is refused.

    Quotes mean text. Works through mappings and lists; null stays null.
    """
    if isinstance(value, dict):
        return {key: argument(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [argument(inner) for inner in value]
    if not isinstance(value, Plain):
        return value
    if value.lower() in _ON | _OFF:
        truth = "true" if value.lower() in _ON else "false"
        raise ValueError(
            f"{value} without quotes is text to some YAML readers and a boolean to others: "
            f"write {truth} for a boolean argument, '{value}' (in quotes) for text."
        )
    return _number_or_text(value)


def given(value: Json) -> Json:
    """Return an engine argument's value as ``argument`` does; null is refused."""
    if value is None:
        raise ValueError("has no value: leave the key out to have the engine's default.")
    return argument(value)


def _number_or_text(value: Plain) -> Json:
    suffixed = with_suffix(value)
    if suffixed is not None:
        return suffixed
    if re.fullmatch(r"[+-]?[\d_.]+(?:[eE][+-]?\d+)?", value) and any(c.isdigit() for c in value):
        try:
            return float(value.replace("_", ""))
        except ValueError:
            return str(value)
    return str(value)


def reads_otherwise(text: str) -> bool:
    """Whether text must be quoted, or else ``argument`` takes it for something else."""
    try:
        return bool(argument(Plain(text)) != text)
    except ValueError:
        return True


def bounded(
    read: Callable[[Json], float],
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Callable[[Json], float]:
    """Return ``read`` with bounds on what it returns."""

    def check(value: Json) -> float:
        number = read(value)
        if above is not None and number <= above:
            raise ValueError(f"needs a number above {above}, found {show(value)}.")
        if at_least is not None and number < at_least:
            raise ValueError(f"needs a number of at least {at_least}, found {show(value)}.")
        if at_most is not None and number > at_most:
            raise ValueError(f"needs a number of at most {at_most}, found {show(value)}.")
        return number

    return check


def one_of(*words: str) -> Callable[[Json], str]:
    """Return a reader of one of these words."""

    def check(value: Json) -> str:
        if isinstance(value, str) and value in words:
            return str(value)
        near = nearest(value, words) if isinstance(value, str) else ""
        raise ValueError(f"needs one of {', '.join(words)}; found {show(value)}.{near}")

    return check


def strategy(value: Json) -> str:
    """Return the name of a strategy; the table of all of them takes a second to import."""
    if value == STRATEGY:
        return STRATEGY
    from tuner.strategies.table import STRATEGIES

    return one_of(*STRATEGIES)(value)
