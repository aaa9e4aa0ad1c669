"""The strategies by name."""

from __future__ import annotations

from collections.abc import Callable

from tuner.store import Store
from tuner.strategies import Search
from tuner.strategies.plain import Plain
from tuner.strategies.priced import Priced
from tuner.strategies.ride_along import RideAlong
from tuner.strategies.staged import Staged


def _plain(store: Store, search: Search) -> Plain:
    return Plain(store, search.space, search.base, search.sampler, search.seed, search.trials)


#: Strategy name -> maker. All of them keep everything in the store's one Optuna study.
STRATEGIES: dict[str, Callable[[Store, Search], Plain]] = {
    "plain": _plain,
    "ride-along": RideAlong,
    "staged": Staged,
    "priced": Priced,
}
#: What a study uses that names none: see benchmarks/search.py.
DEFAULT = "priced"
