"""What an attribution found, as a table and as sentences."""

from __future__ import annotations

from rich.table import Table

from tuner.attribution import Attribution, Effect, Ratio


def table(found: Attribution) -> Table:
    """Return one row per knob: what it is, what it is set back to, what that does."""
    rows = [effect for effect in found.effects if effect.ratios]
    metrics = list(rows[0].ratios) if rows else []
    told = Table(title=f"{found.preset} (trial {found.trial}), one knob at a time set back")
    for name in ("knob", "value", "set back to", *metrics, ""):
        told.add_column(name, overflow="fold")
    for effect in found.effects:
        one = effect.changed
        default = "left out" if one.default is None else str(one.default)
        ratios = [_ratio(effect, metric) for metric in metrics]
        told.add_row(one.knob, str(one.value), default, *ratios, effect.why or effect.standing)
    return told


def _ratio(effect: Effect, metric: str) -> str:
    ratio: Ratio | None = effect.ratios.get(metric)
    if ratio is None:
        return ""
    text = f"x {ratio.value:.3f}"
    return text if ratio.low is None else f"{text} [{ratio.low:.3f}, {ratio.high:.3f}]"


def summary(found: Attribution) -> list[str]:
    """Return the sentences under the table: what matters, what may go, over how many runs."""
    runs = "once" if found.repeats == 1 else f"{found.repeats} times"
    return [
        f"matters   {', '.join(found.matters) or 'no knob alone, beyond the noise'}",
        f"may go    {', '.join([*found.may_go, *found.same]) or 'none'}",
        f"each configuration measured {runs}; ratios are set back / {found.preset}",
    ]
