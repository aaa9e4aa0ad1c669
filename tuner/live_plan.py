"""What a running engine would have to change to be as a preset says: live, and with a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.config import Json
from tuner.engines.live.arguments import ARGUMENTS
from tuner.engines.live.ceiling import hot_values
from tuner.engines.vllm_args import changed, flat
from tuner.live_preset import LivePreset


@dataclass(frozen=True, slots=True)
class Difference:
    """An argument that is not as wanted. ``why`` it needs a restart, '' for an ordinary one."""

    current: Json
    wanted: Json
    why: str = ""

    def to_json(self) -> dict[str, Json]:
        """Return a plain mapping."""
        because = {"why": self.why} if self.why else {}
        return {"current": self.current, "wanted": self.wanted, **because}


@dataclass(frozen=True, slots=True)
class Plan:
    """The way from a running engine to a preset."""

    #: Argument -> what to change on the live engine.
    live: Mapping[str, Difference] = field(default_factory=dict)
    #: Argument -> what only a restart can change.
    restart: Mapping[str, Difference] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Json]:
        """Argument -> wanted value, of what is changed live."""
        return {name: difference.wanted for name, difference in self.live.items()}

    @property
    def before(self) -> dict[str, Json]:
        """Argument -> value to go back to."""
        return {name: difference.current for name, difference in self.live.items()}

    def to_json(self) -> dict[str, Json]:
        """Return a plain mapping."""
        return {
            "live": {name: one.to_json() for name, one in self.live.items()},
            "restart": {name: one.to_json() for name, one in self.restart.items()},
        }


def planned(preset: LivePreset, state: Mapping[str, Any]) -> Plan:
    """Compare a preset with what the engine says of itself (``GET /tuner/live``).

    A live argument that the preset leaves out goes back to the value that the engine was started
    with. Raises StudyError for names that the running vLLM does not have.
    """
    started, values = state["started"], state["values"]
    everything = state.get("arguments", {})
    known = {*everything, *ARGUMENTS, *state["hot"]} - {name for name in ARGUMENTS if "." in name}
    asked = preset.arguments(known)
    live: dict[str, Difference] = {}
    restart: dict[str, Difference] = {}
    for name, value in sorted(hot_values(asked, started).items()):
        if name not in state["hot"] or value == values[name]:
            continue
        above = ARGUMENTS[name].capped and _is_above(value, started[name])
        why = f"the engine was started with {started[name]!r}, and can do less, not more"
        target = restart if above else live
        target[name] = Difference(values[name], value, why if above else "")
    restart |= _cold(preset, asked, state)
    return Plan(live, dict(sorted(restart.items())))


def _cold(
    preset: LivePreset, asked: Mapping[str, Json], state: Mapping[str, Any]
) -> dict[str, Difference]:
    everything = flat(state.get("arguments", {}))
    out = {}
    if preset.model and state.get("model") not in (None, preset.model):
        out["model"] = Difference(state["model"], preset.model)
    cold = {name: value for name, value in flat(asked).items() if name not in state["hot"]}
    for name, (wanted, current) in changed(cold, everything).items():
        out[name] = Difference(current, wanted, state.get("cold", {}).get(name, ""))
    return out


def _is_above(value: Json, most: Json) -> bool:
    try:
        return bool(value > most)
    except TypeError:
        return False  # of another type: the engine says so itself
