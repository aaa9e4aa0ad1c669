"""Which slot takes a job: arithmetic over nodes and slots, without Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a pool may use. Counted in units: GPUs, or engines where engines run on the CPU."""

    #: GPUs over all nodes; None for all there are.
    gpus: int | None = None
    #: Jobs at one time; None for as many as fit.
    slots: int | None = None
    #: Cores of one engine where engines run on the CPU; None where they run on GPUs.
    cpus_per_engine: int | None = None

    def units(self, gpus: int) -> int:
        """Units of a job that asks for this many GPUs."""
        return gpus if self.cpus_per_engine is None else 1

    def of_node(self, resources: Mapping[str, float]) -> int:
        """Units of a node with these resources, in Ray's terms."""
        if self.cpus_per_engine is None:
            return int(resources.get("GPU", 0))
        return int(resources.get("CPU", 0)) // self.cpus_per_engine


@dataclass(frozen=True, slots=True)
class Held:
    """A slot that exists: what it holds, and what it last ran."""

    number: int
    node: str
    units: int
    busy: bool
    last: EngineConfig | None = None
    #: Cold key of the engine that lives on in it, '' for none.
    live: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job goes: to slot ``number`` as it is, or to a new slot of that number on ``node``
    once the idle slots ``release`` are gone."""

    number: int
    node: str
    new: bool
    release: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a job needs: so many units, and best an engine of this cold key."""

    units: int
    cold_key: str = ""


def place(
    capacity: Capacity,
    nodes: Mapping[str, int],
    held: Sequence[Held],
    config: EngineConfig,
    wanted: Wanted,
) -> Placement | None:
    """Return where such a job starts at once, None if nowhere.

    ``nodes`` maps the nodes alive to their units. An idle slot of the right size goes first (its
    host has imported everything): the one whose live engine can serve it, else one without a live
    engine, else the one whose last configuration is most like ``config``.
    """
    busy = [slot for slot in held if slot.busy]
    idle = [slot for slot in held if not slot.busy and slot.node in nodes]
    if capacity.slots is not None and len(busy) >= capacity.slots:
        return None
    units = wanted.units
    same = [slot for slot in idle if slot.units == units]
    if same:
        best = max(
            same, key=lambda s: (s.live == wanted.cold_key, not s.live, _likeness(s.last, config))
        )
        return Placement(best.number, best.node, new=False)
    found = [
        Placement(_free_number(held), node, new=True, release=release)
        for node in nodes
        if (release := _to_release(capacity, nodes, held, node, units)) is not None
    ]
    return min(found, key=lambda placement: len(placement.release), default=None)


def _to_release(
    capacity: Capacity, nodes: Mapping[str, int], held: Sequence[Held], node: str, units: int
) -> tuple[int, ...] | None:
    """Return the idle slots that make way for a new one on ``node``; None if that is not enough."""
    left = list(held)
    # Slots on the node itself first; the others matter where a limit holds over all nodes.
    victims = sorted((slot for slot in held if not slot.busy), key=lambda s: s.node != node)
    released: list[int] = []
    while not _fits(capacity, nodes[node], left, node, units):
        if not victims:
            return None
        victim = victims.pop(0)
        left.remove(victim)
        released.append(victim.number)
    return tuple(released)


def _fits(capacity: Capacity, node_units: int, held: Sequence[Held], node: str, units: int) -> bool:
    on_node = sum(slot.units for slot in held if slot.node == node)
    in_all = sum(slot.units for slot in held)
    return (
        on_node + units <= node_units
        and (capacity.gpus is None or in_all + units <= capacity.gpus)
        and (capacity.slots is None or len(held) < capacity.slots)
    )


def _free_number(held: Sequence[Held]) -> int:
    taken = {slot.number for slot in held}
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _likeness(last: EngineConfig | None, config: EngineConfig) -> float:
    """Share of equal arguments, negative without a common environment: that costs a new host."""
    if last is None or last.model != config.model or dict(last.env) != dict(config.env):
        return -1.0
    names = {*last.args, *config.args}
    equal = sum(last.args.get(name) == config.args.get(name) for name in names)
    return equal / len(names) if names else 1.0
