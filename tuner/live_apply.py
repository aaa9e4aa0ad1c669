"""A preset put on a running server: compared, changed, read back; undone where that fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tuner.config import Json
from tuner.errors import ConfigRejected, EngineFault, TunerError
from tuner.live_plan import Plan, planned
from tuner.live_preset import LivePreset
from tuner.live_server import LiveServer

#: ``unchanged``: all that can be changed live was as wanted. ``refused``: the engine did not take
#: it and is as it was. ``rolled back``: it took something else and was changed back.
#: ``unknown``: changing it back failed, too.
Result = Literal["applied", "unchanged", "planned", "refused", "rolled back", "unknown"]


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of putting a preset on a server."""

    result: Result
    plan: Plan = field(default_factory=Plan)
    error: str = ""
    hint: str = ""

    @property
    def ok(self) -> bool:
        """Whether the engine runs the preset now, as far as that can be had live."""
        return self.result in ("applied", "unchanged", "planned")

    def to_json(self) -> dict[str, Json]:
        """Return a plain mapping."""
        error = {"error": self.error, "hint": self.hint} if self.error else {}
        return {"result": self.result, **self.plan.to_json(), **error}


async def apply(
    server: LiveServer, preset: LivePreset, drain_s: float = 0.0, *, dry_run: bool = False
) -> Applied:
    """Change what can be changed live. ``drain_s``: see ``LiveConfig``.

    Raises StudyError for a preset with unknown arguments and what ``LiveServer.state`` raises, both
    with nothing changed.
    """
    plan = planned(preset, await server.state())
    if dry_run:
        return Applied("planned", plan)
    if not plan.live:
        return Applied("unchanged", plan)
    try:
        await server.change(plan.values, drain_s)
        await _read_back(server, plan.values)
    except ConfigRejected as rejected:
        return Applied("refused", plan, rejected.detail, rejected.hint)
    except TunerError as fault:
        return await _rolled_back(server, plan, fault, drain_s)
    return Applied("applied", plan)


async def _read_back(server: LiveServer, wanted: Mapping[str, Json]) -> None:
    values = (await server.state())["values"]
    wrong = {n: [want, values.get(n)] for n, want in wanted.items() if values.get(n) != want}
    if wrong:
        raise EngineFault("not_applied", f"wanted and read back: {wrong}")


async def _rolled_back(
    server: LiveServer, plan: Plan, fault: TunerError, drain_s: float
) -> Applied:
    """Change back. Drains, too: requests came in after the change, and a busy engine refuses."""
    try:
        await server.change(plan.before, drain_s)
        await _read_back(server, plan.before)
    except TunerError as second:
        why = f"{fault}; changing it back failed, too: {second}"
        return Applied("unknown", plan, why, "restart the server")
    return Applied("rolled back", plan, str(fault), fault.hint)
