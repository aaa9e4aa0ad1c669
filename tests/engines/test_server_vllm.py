"""A real ``vllm serve`` on the CPU: one start, one replay, and nothing left."""

import asyncio
from pathlib import Path

import pytest

from tests.processes import MARK, Family
from tuner.config import EngineConfig
from tuner.engines.http_loop import PreciseLoop
from tuner.engines.live.middleware import TOKEN
from tuner.engines.server import ServerLauncher
from tuner.engines.server_engine import ServerEngine
from tuner.engines.server_process import serve_command
from tuner.engines.vllm import base_env
from tuner.errors import RequestRejected
from tuner.job import Deadlines
from tuner.live_apply import apply
from tuner.live_preset import parsed
from tuner.live_server import LiveServer
from tuner.records import RequestRecord
from tuner.replay import Plan, replay
from tuner.trace import Request
from tuner.traces.tokens import TokenSource

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
MODEL = Path(__file__).parents[2] / "studies" / "models" / "tiny"
BLOCK = 256  # two of the CPU engine's


async def a_preset_is_applied_live(engine: ServerEngine) -> None:
    """On the same server, while it answers: held back, changed, read back, and back again."""
    preset = parsed(
        f"model: {MODEL}\nmax-num-seqs: 3\nlong-prefill-token-threshold: 64\n"
        "scheduling-policy: priority\nmax-model-len: 2048\nblock-size: 64\n",
        "preset.yaml",
    )
    async with LiveServer.open(str(engine.client.target), "secret") as server:
        before = await server.state()
        running = asyncio.create_task(engine.generate(Request(98, 0.0, 4, 200), [10, 11, 12, 13]))
        done = await apply(server, preset, drain_s=60)
        assert (done.result, done.plan.values) == (
            "applied",
            {"long_prefill_token_threshold": 64, "max_num_seqs": 3},
        )
        assert done.plan.restart.keys() == {"block_size"}
        assert (await running).answered_tokens == 200
        assert (await server.state())["effective"]["running_max"] == 3
        back = await apply(server, parsed("scheduling-policy: priority\n", "back.yaml"), drain_s=60)
        assert back.result == "applied"
        assert (await server.state())["values"] == before["values"]
        refused = parsed("watermark: 1.5\nmax-num-seqs: 2\n", "refused.yaml")
        assert "less than 1" in (await apply(server, refused)).error
        assert (await server.state())["values"] == before["values"]


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
    env = base_env(tmp_path / "cache", device="cpu", model=str(MODEL)) | {TOKEN: "secret"}
    command = [*serve_command(), "--middleware", "tuner.engines.live.middleware.LiveConfig"]
    config = EngineConfig(str(MODEL), args, env)
    # Pairs: the second of each shares the first's leading block.
    requests = [
        Request(i, i // 2 * 0.2 + i % 2 * 5.0, 300, 1 + i % 5, (i // 2,), (BLOCK,), priority=i % 3)
        for i in range(30)
    ]
    requests.sort(key=lambda request: request.arrival_s)

    async def main() -> list[RequestRecord]:
        async with ServerLauncher(command).launch(config, str(tmp_path / "engine.log")) as engine:
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
            await a_preset_is_applied_live(engine)
            return records

    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        records = runner.run(main())
    assert [record.error for record in records] == [""] * 30
    assert all(len(r.token_s) == r.answered_tokens == r.output_tokens for r in records)
    assert [r.cached_tokens for r in records] == [0] * 15 + [BLOCK] * 15
    family.gone(5.0)
