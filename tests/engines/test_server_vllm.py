"""A real ``vllm serve`` on the CPU: one start, one replay, and nothing left."""

import asyncio
from pathlib import Path

import pytest

from tests.processes import MARK, Family
from tuner.config import EngineConfig
from tuner.engines.http_loop import PreciseLoop
from tuner.engines.server import ServerLauncher
from tuner.engines.vllm import base_env
from tuner.errors import RequestRejected
from tuner.job import Deadlines
from tuner.records import RequestRecord
from tuner.replay import Plan, replay
from tuner.trace import Request
from tuner.traces.tokens import TokenSource

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
MODEL = Path(__file__).parents[2] / "studies" / "models" / "tiny"
BLOCK = 256  # two of the CPU engine's


def test_vllm_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family = Family()
    monkeypatch.setenv(MARK, family.mark)
    args = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "scheduling_policy": "priority",
    }
    env = base_env(tmp_path / "cache", device="cpu", model=str(MODEL))
    config = EngineConfig(str(MODEL), args, env)
    # Pairs: the second of each shares the first's leading block.
    requests = [
        Request(i, i // 2 * 0.2 + i % 2 * 5.0, 300, 1 + i % 5, (i // 2,), (BLOCK,), priority=i % 3)
        for i in range(30)
    ]
    requests.sort(key=lambda request: request.arrival_s)

    async def main() -> list[RequestRecord]:
        async with ServerLauncher().launch(config, str(tmp_path / "engine.log")) as engine:
            facts = engine.facts
            assert facts["version"].startswith("0.")
            assert facts["vocab_size"] == 32_000
            assert facts["effective"]["max_num_seqs"] == 8
            assert facts["effective"]["max_model_len"] == 2048
            assert facts["effective"]["dtype"] == "bfloat16"
            assert facts["changed"] == {}
            assert facts["kv_cache_tokens"] > 2048
            assert facts["token_times"] == "counted by the server in every chunk"
            assert len(family.look()) > 1
            source = TokenSource("0" * 16, facts["vocab_size"], 0)
            records = await replay(engine, Plan(requests), source.prompt, Deadlines())
            counters = await engine.counters()
            assert counters["generated_tokens"] == sum(r.output_tokens for r in requests)
            assert counters["preemptions"] == 0
            assert counters["prefix_hit_share"] == pytest.approx(15 * BLOCK / (30 * 300))
            with pytest.raises(RequestRejected, match="status 400"):
                await engine.generate(Request(99, 0.0, 4, 4000), [10, 11, 12, 13])
            await engine.reset()
            assert (await engine.counters())["generated_tokens"] == 0
            return records

    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        records = runner.run(main())
    assert [record.error for record in records] == [""] * 30
    assert all(len(r.token_s) == r.answered_tokens == r.output_tokens for r in records)
    assert [r.cached_tokens for r in records] == [0] * 15 + [BLOCK] * 15
    family.gone(5.0)
