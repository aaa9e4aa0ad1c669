"""Attribution read back from storage: the study beside the study that explains its winner."""

from __future__ import annotations

from collections.abc import Collection

from tuner.attribution import Attribution, Plan, attribute
from tuner.config import digest
from tuner.store import Store


def study_name(name: str, plan: Plan) -> str:
    """Return the name, in the same storage, of the study that carries out a plan."""
    return f"{name}-explain-{digest(plan.to_json())[:8]}"


def load_attribution(store: Store, trials: Collection[int]) -> Attribution | None:
    """Return what explains one of these trials, the latest where several are; None without."""
    storage = store.study._storage
    prefix = f"{store.study.study_name}-explain-"
    names = [s.study_name for s in storage.get_all_studies() if s.study_name.startswith(prefix)]
    for name in reversed(names):
        explaining = Store.load(storage, name)
        plan = Plan.from_json(explaining.study.user_attrs["definition"]["explains"])
        if plan.trial in trials:
            return attribute(plan, explaining.records(), store.objectives)
    return None
