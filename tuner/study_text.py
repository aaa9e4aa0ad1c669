"""A study as text: the resolved file, and what of it must stay the same when it is resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tuner.config import Json
from tuner.knobs import ChoiceDomain, IntDomain, Knob, SearchSpace
from tuner.study_values import reads_otherwise
from tuner.yaml_file import dump

if TYPE_CHECKING:
    from tuner.study import StudySpec


def resolved(spec: StudySpec) -> str:
    """Return a study file that means the same as ``spec`` and names no other study file."""
    base = dict(spec.base.args)
    fixed = {name: value for name, value in spec.space.fixed.items() if name not in base}
    engine: dict[str, Json] = {
        "kind": spec.engine.kind,
        "args": base,
        "env": dict(spec.base.env),
        "deadlines": spec.engine.deadlines.to_json(),
        "options": dict(spec.engine.options),
    }
    if spec.engine.cpus is not None:
        engine["cpus"] = spec.engine.cpus
    content = {
        "name": spec.name,
        "model": {"path" if spec.base.model.startswith("/") else "name": spec.base.model},
        "engine": engine,
        "space": {
            "knobs": {knob.name: _knob(knob) for knob in spec.space.knobs},
            "fixed": fixed,
            "rules": list(spec.space.rules),
        },
        "workload": spec.workload_spec.to_json(),
        "objectives": [{"metric": o.metric, "direction": o.direction} for o in spec.objectives],
        "constraints": [_constraint(c.metric, c.upper, c.lower) for c in spec.constraints],
        "budget": as_json(spec.budget),
        "strategy": as_json(spec.strategy),
        "confirm": as_json(spec.confirm),
        "accuracy": as_json(spec.accuracy),
        "attribution": as_json(spec.attribution),
        "baselines": [{"name": b.name, "args": dict(b.arguments)} for b in spec.baselines],
        "storage": spec.storage,
        "ray": as_json(spec.ray),
        "repeats": spec.repeats,
        "early_end": spec.early_end,
    }
    if spec.hardware is not None:
        content["hardware"] = as_json(spec.hardware)
    if spec.price is not None:
        content["price"] = as_json(spec.price)
    return dump(content, quote=reads_otherwise)


def definition(spec: StudySpec) -> dict[str, Json]:
    """Return what trials of one study have in common: two of them compare only under the same."""
    return {
        "objectives": [f"{o.direction} {o.metric}" for o in spec.objectives],
        "constraints": [_constraint(c.metric, c.upper, c.lower) for c in spec.constraints],
        "space": _space(spec.space),
        "workload": spec.workload().digest,
        "model": spec.base.model,
        "arguments": dict(spec.base.args),
        "environment": dict(spec.base.env),
        "engine": spec.engine.kind,
        "engine options": dict(spec.engine.options),
        "repeats": spec.repeats,
        **({} if spec.price is None else {"price per GPU hour": spec.price.gpu_hour}),
    }


def _space(space: SearchSpace) -> dict[str, Json]:
    return {
        "knobs": {knob.name: _knob(knob) for knob in space.knobs},
        "fixed": dict(space.fixed),
        "rules": list(space.rules),
    }


def _constraint(metric: str, upper: float | None, lower: float | None) -> dict[str, Json]:
    bounds = {"max": upper, "min": lower}
    return {"metric": metric, **{key: value for key, value in bounds.items() if value is not None}}


def _knob(knob: Knob) -> dict[str, Json]:
    """Return a knob as a search-space file would have it."""
    domain = knob.domain
    out: dict[str, Json]
    if isinstance(domain, ChoiceDomain):
        labelled = ChoiceDomain.of(domain.options) != domain
        options = dict(zip(map(str, domain.labels), domain.options, strict=True))
        out = {"choice": options if labelled else list(domain.options)}
    else:
        kind, default = ("int", 1) if isinstance(domain, IntDomain) else ("float", None)
        out = {kind: [domain.low, domain.high]}
        if domain.step != default:
            out["step"] = domain.step
        if domain.log:
            out["log"] = True
    if knob.when:
        out["when"] = {name: list(allowed) for name, allowed in knob.when.items()}
    return out


def as_json(section: Any) -> dict[str, Json]:
    """Return a section as a file would have it: keys at their default are left out."""
    out: dict[str, Json] = {}
    for item in dataclasses.fields(section):
        value = getattr(section, item.name)
        default = (
            item.default_factory()
            if item.default_factory is not dataclasses.MISSING
            else item.default
        )
        if value != default:
            out[item.name] = _plain(value)
    return out


def _plain(value: Any) -> Json:
    if dataclasses.is_dataclass(value):
        return as_json(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
