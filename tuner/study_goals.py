"""Objectives and constraints: metrics that exist, are measured, and say what they seem to say."""

from __future__ import annotations

from tuner.job import MEASURES
from tuner.metrics import COST, DISTRIBUTIONS, NAMES
from tuner.objectives import Constraint, Objective
from tuner.study_sections import ConstraintSection, ObjectiveSection, parse
from tuner.study_values import show
from tuner.study_workload import WorkloadSpec
from tuner.yaml_file import At, Tree, nearest

#: What a study without objectives optimizes.
DEFAULTS = (
    Objective("saturated.output_tokens_per_s", maximize=True),
    Objective("paced.e2e.p99", maximize=False),
)
#: Throughput at the recorded rate: what is offered comes out, whatever the configuration.
_ECHOES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "generated_tokens")
_NEEDS_SLO = ("goodput", "attainment")
#: A bound above so many seconds was probably meant in milliseconds.
_MANY_SECONDS = 100.0


def read_objectives(
    tree: Tree, at: At, workload: WorkloadSpec | None, warnings: list[str]
) -> tuple[Objective, ...]:
    """Return the objectives; every fault is noted."""
    written = tree.get(at)
    if written is None:
        for objective in DEFAULTS:
            _check_measured(tree, at, objective.metric, workload)
        return DEFAULTS
    if not isinstance(written, list) or not written:
        tree.report(
            at, f"needs a list of at least one {{metric, direction}}, found {_found(written)}."
        )
        return ()
    out: list[Objective] = []
    for i in range(len(written)):
        section = parse(ObjectiveSection, tree, (*at, i))
        if section is None or not _check_metric(tree, (*at, i), section.metric, workload):
            continue
        objective = Objective(section.metric, section.direction == "maximize")
        if objective.metric in [other.metric for other in out]:
            tree.report((*at, i, "metric"), f"{objective.metric} is given twice.")
        _check_echo(tree, (*at, i), objective.metric)
        if objective.maximize and _in_seconds(objective.metric):
            message = f"maximizes {objective.metric}, a latency: is minimize meant?"
            warnings.append(str(tree.problem((*at, i, "direction"), message)))
        out.append(objective)
    return tuple(out)


def read_constraints(
    tree: Tree, at: At, workload: WorkloadSpec | None, warnings: list[str]
) -> tuple[Constraint, ...]:
    """Return the constraints in base units; every fault is noted."""
    written = tree.get(at)
    if written is None:
        return ()
    if not isinstance(written, list):
        tree.report(at, f"needs a list of {{metric, max, min}}, found {_found(written)}.")
        return ()
    out: list[Constraint] = []
    for i in range(len(written)):
        section = parse(ConstraintSection, tree, (*at, i))
        if section is None or not _check_metric(tree, (*at, i), section.metric, workload):
            continue
        constraint = _constraint(tree, (*at, i), section)
        if constraint.metric in [other.metric for other in out]:
            tree.report((*at, i, "metric"), f"{constraint.metric} is bounded twice: join the two.")
        if _in_seconds(constraint.metric) and (section.max or 0) > _MANY_SECONDS:
            message = f"{section.max} seconds; for milliseconds write max_ms."
            warnings.append(str(tree.problem((*at, i, "max"), message)))
        out.append(constraint)
    return tuple(out)


def _constraint(tree: Tree, at: At, section: ConstraintSection) -> Constraint:
    bounds: dict[str, float | None] = {}
    for name in ("max", "min"):
        base, ms = getattr(section, name), getattr(section, f"{name}_ms")
        if ms is not None and not _in_seconds(section.metric):
            tree.report((*at, f"{name}_ms"), f"{section.metric} is no time: write {name}.")
        if ms is not None and base is not None:
            tree.report((*at, f"{name}_ms"), f"bounds what {name} bounds: keep one of them.")
        bounds[name] = base if ms is None else ms / 1000
    upper, lower = bounds["max"], bounds["min"]
    if upper is None and lower is None:
        tree.report(at, "needs max, min, or both.")
    if upper is not None and lower is not None and lower > upper:
        tree.report((*at, "min"), f"min {lower} is above max {upper}.")
    return Constraint(section.metric, upper, lower)


def _check_metric(tree: Tree, at: At, metric: str, workload: WorkloadSpec | None) -> bool:
    if metric not in NAMES:
        near = nearest(metric, NAMES) or f" It begins with {' or '.join(MEASURES)}, as {NAMES[0]}."
        tree.report((*at, "metric"), f"there is no metric {show(metric)}.{near}")
        return False
    _check_measured(tree, (*at, "metric"), metric, workload)
    return True


def _check_measured(tree: Tree, at: At, metric: str, workload: WorkloadSpec | None) -> None:
    if workload is None:
        return
    measure, _, name = metric.partition(".")
    if measure not in workload.section.measures:
        has = ", ".join(workload.section.measures)
        tree.report(
            at, f"{metric}: the workload measures {has} only; add {measure} to its measures."
        )
    if metric == COST and tree.get(("price",)) is None:
        tree.report(at, f"{metric} needs the study's price: {{gpu_hour: ..., currency: USD}}.")
    slo = workload.section.slo
    if name in _NEEDS_SLO and not (slo.seconds() or slo.classes):
        which = "bounds only percentiles in its slo" if slo.percentiles() else "has no slo"
        tree.report(at, f"{metric} counts requests within the SLO, and the workload {which}.")


def _check_echo(tree: Tree, at: At, metric: str) -> None:
    measure, _, name = metric.partition(".")
    if measure == "paced" and name in _ECHOES:
        instead = "requests_per_s" if name == "requests_per_s" else "output_tokens_per_s"
        tree.report(
            (*at, "metric"),
            f"{metric} only echoes the offered load, as a paced replay sends at the recorded "
            f"times: take saturated.{instead}.",
        )


def _in_seconds(metric: str) -> bool:
    return metric.split(".")[1] in DISTRIBUTIONS


def _found(value: object) -> str:
    return "an empty list" if value == [] else show(value)
