"""A small search whose answers are known on paper, for tests of strategies."""

from collections.abc import Collection

import optuna

from tuner.config import EngineConfig
from tuner.knobs import ChoiceDomain, IntDomain, Knob, SearchSpace
from tuner.objectives import Constraint, Objective
from tuner.records import Cost, Infeasible, Measured, Measurement, TrialRecord
from tuner.store import Store
from tuner.strategies import Proposal, Search
from tuner.strategies.plain import KnownGood, Plain
from tuner.strategies.table import STRATEGIES

OBJECTIVES = (Objective("saturated.output_tokens_per_s", True), Objective("paced.e2e.p99", False))
CONSTRAINTS = (Constraint("paced.error_share", upper=0.01),)
BASE = EngineConfig("model", {"max_model_len": 512})
HOT = frozenset({"max_num_seqs", "max_num_batched_tokens"})
SPACE = SearchSpace(
    (
        Knob("max_num_seqs", IntDomain(8, 512, log=True)),
        Knob("max_num_batched_tokens", ChoiceDomain.of([256, 512, 1024, 2048])),
        Knob("quantization", ChoiceDomain.of([None, "fp8"])),
        Knob("block_size", ChoiceDomain.of([16, 32, 64])),
        Knob("enforce_eager", ChoiceDomain.of([True, False])),
        Knob("graphs", ChoiceDomain.of(["full", "part"]), when={"enforce_eager": (False,)}),
    ),
    rules=("max_num_batched_tokens >= max_num_seqs",),
)
DEFAULT = {"max_num_seqs": 64, "max_num_batched_tokens": 1024, "enforce_eager": False}


def in_memory() -> Store:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    directions = [objective.direction for objective in OBJECTIVES]
    return Store(optuna.create_study(directions=directions), OBJECTIVES, CONSTRAINTS)


def strategy(name: str, store: Store | None = None, **changes: object) -> Plain:
    parts: dict[str, object] = {"space": SPACE, "base": BASE, "hot": HOT, "trials": 40}
    return STRATEGIES[name](store or in_memory(), Search(**{**parts, **changes}))  # type: ignore[arg-type]


def truth(point: dict[str, object]) -> tuple[float, float] | None:
    """More sequences are faster and later, larger steps too; fp8 and graphs help both."""
    if point.get("block_size") == 64 and point.get("quantization") == "fp8":
        return None
    seqs = float(point.get("max_num_seqs", 64))  # type: ignore[arg-type]
    tokens = float(point.get("max_num_batched_tokens", 1024))  # type: ignore[arg-type]
    pace = 1.4 if point.get("quantization") == "fp8" else 1.0
    pace *= {"full": 1.2, "part": 1.1}.get(str(point.get("graphs")), 1.0)
    return 100 * pace * seqs**0.3, (1 + seqs / 200 + tokens / 1000) / pace


def record(
    proposal: Proposal, live: Collection[str] = (), start_s: float = 55.0, replay_s: float = 25.0
) -> TrialRecord:
    """What the simulated machine says of a proposal, given the engines that were live."""
    parts = proposal.number, proposal.config, proposal.point
    scores = truth(dict(proposal.point))
    if scores is None:
        return TrialRecord(*parts, Infeasible("out_of_memory"), cost=Cost(start_s=start_s))
    is_live = proposal.config.cold_key(HOT) in live
    cost = Cost(0.0 if is_live else start_s, 0.7 if is_live else 0.0, replay_s, 0.0, 1)
    outcome = Measured(Measurement({"paced.error_share": 0.0}))
    return TrialRecord(*parts, outcome, scores, (-0.01,), cost)


def searched(plain: Plain, n: int, start_s: float = 55.0) -> list[tuple[Proposal, bool]]:
    """Run ``n`` trials on one slot; return proposals, and whether each found its engine live."""
    live: list[str] = []
    out: list[tuple[Proposal, bool]] = []
    for _ in range(n):
        proposal = plain.ask(live)
        if proposal is None:
            break
        key = proposal.config.cold_key(HOT)
        told = record(proposal, live, start_s)
        plain.tell(told)
        out.append((proposal, key in live))
        live = [key] if told.scores else []
    return out


def baseline() -> KnownGood:
    return KnownGood("baseline: vllm serve", {}, DEFAULT)
