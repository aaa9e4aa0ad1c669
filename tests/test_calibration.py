"""What the memory model refuses in a study, and what first starts teach it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner.calibration import Memory
from tuner.config import EngineConfig, Json
from tuner.devices import GIB
from tuner.engines.vllm_check import Verdict
from tuner.events import TrialFinished
from tuner.memory import Demand
from tuner.objectives import Objective
from tuner.records import Cost, Measured, Measurement, TrialRecord
from tuner.store import Store, sqlite_url

PAGE = 1 << 20  # bytes of one token, so that tokens are MiB


def demand(config: EngineConfig) -> Demand:
    """A GPU of 100 GiB, weights of 40; activations of 1 MiB per token of a step, by the formula."""
    args = config.args
    return Demand(
        total_bytes=100 * GIB,
        utilization=float(args.get("gpu_memory_utilization", 0.9)),
        weight_bytes=40 * GIB,
        activation_bytes=int(args.get("max_num_batched_tokens", 1024)) << 20,
        kv_token_bytes=PAGE,
        block_size=16,
        max_model_len=int(args.get("max_model_len", 1024)),
        max_num_seqs=64,
        key=str(args.get("quantization")),
    )


def ask(config: EngineConfig) -> Verdict:
    return Verdict(True, demand=demand(config))


def config(**args: Json) -> EngineConfig:
    return EngineConfig("m", args)


def finished(
    asked: EngineConfig, tokens: int, *, start_s: float = 30.0, **facts: Any
) -> TrialFinished:
    measured = Measured(Measurement({}, facts={"kv_cache_tokens": tokens, **facts}))
    record = TrialRecord(3, asked, {}, measured, cost=Cost(start_s=start_s))
    return TrialFinished(record, [])


def refused(memory: Memory, asked: EngineConfig) -> str:
    found = memory.refusal(asked, ask(asked))
    assert found is None or found.reason == "out_of_memory"
    return "" if found is None else found.detail


def test_what_does_not_fit_is_refused_as_out_of_memory_with_the_way_out() -> None:
    memory = Memory(ask)
    assert refused(memory, config()) == ""
    detail = refused(memory, config(gpu_memory_utilization=0.3))
    assert detail.startswith("predicted: weights 40.00 GiB")
    assert "raise gpu_memory_utilization to 0.43" in detail


def test_the_engine_that_has_to_fit_is_the_one_that_is_started_for_live_changes() -> None:
    asked = config(gpu_memory_utilization=0.45, max_num_batched_tokens=1024)
    assert refused(Memory(ask), asked) == ""
    detail = refused(Memory(ask, {"max_num_batched_tokens": 8192}), asked)
    assert "(started with max_num_batched_tokens 8192, for live changes)" in detail


def test_what_only_a_live_engine_could_hold_back_is_refused_alone() -> None:
    memory = Memory(ask, {"gpu_memory_utilization": 0.9})
    assert refused(memory, config(gpu_memory_utilization=0.9)) == ""
    assert "gpu_memory_utilization 0.3 of" in refused(memory, config(gpu_memory_utilization=0.3))


def test_the_first_start_corrects_the_formula_for_its_kind_only() -> None:
    memory = Memory(ask)
    near = config(gpu_memory_utilization=0.46)
    assert refused(memory, near) == ""
    # The formula leaves 90 - 40 - 1 GiB; 8 GiB of it were not there.
    memory.on_event(finished(config(), 41 * 1024))
    assert memory.offsets == {"None": 8 * GIB}
    assert "activations 9.00 GiB" in refused(memory, near)
    assert refused(memory, config(gpu_memory_utilization=0.46, quantization="fp8")) == ""
    memory.on_event(finished(config(), 30 * 1024))
    assert memory.offsets == {"None": 8 * GIB}


def test_a_start_for_live_changes_teaches_by_what_it_was_started_with() -> None:
    memory, live = Memory(ask, {"max_num_batched_tokens": 8192}), {"changed": {}, "reused": False}
    memory.on_event(finished(config(max_num_batched_tokens=512), 42 * 1024, live=live))
    assert memory.offsets == {"None": 0}
    refused_live = Memory(ask, {"max_num_batched_tokens": 8192})
    event = finished(config(max_num_batched_tokens=1024), 49 * 1024, live={"refused": "no"})
    refused_live.on_event(event)
    assert refused_live.offsets == {"None": 0}


#: The hot arguments of a study whose engines are started for live changes.
CEILING: dict[str, Json] = {"gpu_memory_utilization": 0.96, "max_num_batched_tokens": 8192}


def test_a_baseline_is_started_exactly_as_it_is_and_teaches() -> None:
    asked = EngineConfig(
        "m",
        {"gpu_memory_utilization": 0.9, "max_num_batched_tokens": 1024},
        label="baseline: as we run it",
    )
    memory = Memory(ask, CEILING)
    memory.on_event(finished(asked, 41 * 1024))
    assert memory.offsets == {"None": 8 * GIB}


def test_what_leaves_a_size_to_vllm_is_started_exactly_as_it_is_and_teaches() -> None:
    memory = Memory(ask, CEILING)
    memory.on_event(finished(config(), 41 * 1024))
    assert memory.offsets == {"None": 8 * GIB}


def test_a_cache_that_was_made_smaller_live_teaches_too() -> None:
    memory, live = Memory(ask, CEILING), {"changed": {"gpu_memory_utilization": 0.9}}
    asked = config(gpu_memory_utilization=0.9, max_num_batched_tokens=1024)
    memory.on_event(finished(asked, 42 * 1024, live=live))  # 90 - 40 - 8 GiB, as the formula says
    assert memory.offsets == {"None": 0}


def test_what_is_started_exactly_as_it_is_has_to_fit_alone_only() -> None:
    small = {"gpu_memory_utilization": 0.45, "max_num_batched_tokens": 1024}
    maxima = {"gpu_memory_utilization": 0.45, "max_num_batched_tokens": 8192}
    assert "for live changes" in refused(Memory(ask, maxima), config(**small))
    assert refused(Memory(ask, maxima), EngineConfig("m", small, label="baseline: small")) == ""


@pytest.mark.parametrize(
    "event",
    [
        finished(config(), 100, start_s=0.0),
        finished(config(), 100, live={"reused": True}),
        TrialFinished(TrialRecord(0, config(), {}, Measured(Measurement({}))), []),
    ],
    ids=["no start", "a live engine", "no fact"],
)
def test_what_was_no_start_teaches_nothing(event: TrialFinished) -> None:
    memory = Memory(ask)
    memory.on_event(event)
    assert memory.offsets == {}


@pytest.mark.parametrize("outright", [{"kv_bytes": GIB}, {"blocks": 64}, {"total_bytes": 0}])
def test_a_cache_whose_size_was_set_outright_teaches_nothing(outright: dict[str, int]) -> None:
    def given(asked: EngineConfig) -> Verdict:
        return Verdict(True, demand=replace(demand(asked), **outright))

    memory = Memory(given)
    memory.on_event(finished(config(), 100))
    assert memory.offsets == {}


def test_what_was_learned_is_kept_in_the_study_and_honoured_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    def store() -> Store:
        return Store.open(sqlite_url(tmp_path), "s", [Objective("x", "maximize")], [], {})

    first, second = Memory(ask), Memory(ask)
    first.keep_in(store())
    first.on_event(finished(config(), 41 * 1024))
    stored = store().calibrations()["None"]
    assert (stored["trial"], stored["kv_tokens"], stored["predicted_kv_tokens"]) == (
        3,
        41 * 1024,
        49 * 1024,
    )
    second.keep_in(store())
    assert second.offsets == first.offsets


def test_where_nothing_can_be_said_nothing_is_refused() -> None:
    verdict = Verdict(True, not_modelled="LoRA")
    assert Memory(lambda _: verdict).refusal(config(), verdict) is None
