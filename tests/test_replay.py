"""Replays against engines whose right answer is known on paper, in virtual time."""

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tuner.bench import check_replay
from tuner.config import Json
from tuner.engines import Completion
from tuner.engines.simulated import SimulatedLauncher, VirtualTimeLoop
from tuner.errors import EngineFault, MeasurementInvalid, RequestRejected
from tuner.job import Deadlines, Slo
from tuner.metrics import measure
from tuner.records import RequestRecord
from tuner.replay import Plan, replay
from tuner.trace import Request


class OneServer:
    """Serves one request at a time, ``tokens`` of which arrive together every ``step_s``."""

    facts: Mapping[str, Json] = {}

    def __init__(self, step_s: float = 1.0, chunk: int = 1) -> None:
        self.step_s, self.chunk, self.free = step_s, chunk, asyncio.Lock()
        self.prompts: dict[int, Sequence[int]] = {}
        self.made = 0.0

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        self.prompts[request.id] = prompt
        times: list[float] = []
        async with self.free:
            while len(times) < request.output_tokens:
                await asyncio.sleep(self.step_s)
                now = asyncio.get_running_loop().time()
                times += [now] * min(self.chunk, request.output_tokens - len(times))
                self.made += 1
        return Completion(tuple(times), len(times))

    async def reset(self) -> None: ...

    async def reconfigure(self, hot: Mapping[str, Json]) -> Mapping[str, Json]:
        return hot

    async def counters(self) -> Mapping[str, float]:
        return {"generated_tokens": self.made}


class Refusing(OneServer):
    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        if request.id % 2:
            raise RequestRejected("too long")
        return await super().generate(request, prompt)


class Short(OneServer):
    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        done = await super().generate(request, prompt)
        return Completion(done.token_s[:1], 1)


class Stuck(OneServer):
    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        return await asyncio.get_running_loop().create_future()


class Dying(OneServer):
    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        if request.id == 1:
            raise EngineFault("engine_died", "exit code 1")
        return await super().generate(request, prompt)


def requests(n: int, gap_s: float, output: int = 1) -> list[Request]:
    return [Request(i, i * gap_s, prompt_tokens=4, output_tokens=output) for i in range(n)]


def run(engine: OneServer, plan: Plan, deadlines: Deadlines | None = None) -> list[RequestRecord]:
    def prompts(request: Request) -> list[int]:
        return [request.id] * request.prompt_tokens

    return SimulatedLauncher.run(replay(engine, plan, prompts, deadlines or Deadlines()))


def test_waiting_behind_one_slow_server_counts_from_the_scheduled_arrival() -> None:
    # Arrivals every 0.5 s, service 1 s: request i ends at i + 1, having arrived at i / 2.
    records = run(OneServer(1.0), Plan(requests(10, 0.5)))
    waits = [record.token_s[0] - record.scheduled_s for record in records]
    assert waits == pytest.approx([1 + i / 2 for i in range(10)])
    values, counts, _ = measure("paced", records, Slo())
    assert values["paced.requests_per_s"] == pytest.approx(1.0)
    assert values["paced.e2e.p50"] == pytest.approx(np.percentile(waits, 50))
    assert values["paced.e2e.max"] == pytest.approx(5.5)
    assert counts["paced.requests"] == 10


def test_a_server_that_keeps_up_lets_nobody_wait() -> None:
    # D/D/1 at half load: arrivals every 2 s, service 1 s.
    values, _, _ = measure("paced", run(OneServer(1.0), Plan(requests(120, 2.0))), Slo())
    assert values["paced.ttft.p50"] == values["paced.ttft.max"] == pytest.approx(1.0)
    assert values["paced.requests_per_s"] == pytest.approx(120 / 239)


def test_a_burst_waits_its_turn() -> None:
    # 101 requests at once, 3 tokens of 0.1 s each: request i has its first token at 0.3 i + 0.1.
    records = run(OneServer(0.1), Plan(requests(101, 0.0, output=3)))
    values, _, _ = measure("paced", records, Slo({"default": {"ttft": 15.11}}))
    assert values["paced.ttft.p50"] == pytest.approx(0.3 * 50 + 0.1)
    assert values["paced.ttft.p99"] == pytest.approx(0.3 * 99 + 0.1)
    assert values["paced.e2e.max"] == pytest.approx(0.3 * 101)
    assert values["paced.tpot.p99"] == values["paced.itl.max"] == pytest.approx(0.1)
    assert values["paced.attainment"] == pytest.approx(51 / 101)
    assert values["paced.output_tokens_per_s"] == pytest.approx(10.0)
    assert values["paced.goodput"] == pytest.approx(51 / 30.3)


def test_refused_requests_give_no_throughput_and_no_latency() -> None:
    # Arrivals every 10 s, service 2 s of two tokens; every second one is refused at once.
    records = run(Refusing(1.0), Plan(requests(100, 10.0, output=2)))
    values, counts, _ = measure("paced", records, Slo())
    assert values["paced.output_tokens_per_s"] == pytest.approx(100 / 982)
    assert values["paced.requests_per_s"] == pytest.approx(50 / 982)
    assert (counts["paced.requests"], counts["paced.errors"], counts["paced.e2e"]) == (100, 50, 50)
    assert values["paced.e2e.p99"] == pytest.approx(2.0)


class Stalling(OneServer):
    """Makes no token between 20 s and 30 s."""

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        times: list[float] = []
        clock = asyncio.get_running_loop().time
        async with self.free:
            for _ in range(request.output_tokens):
                if 20.0 <= clock() < 30.0:
                    await asyncio.sleep(30.0 - clock())
                await asyncio.sleep(self.step_s)
                times.append(clock())
        return Completion(tuple(times), len(times))


def test_a_stall_is_seen_by_all_who_came_during_it() -> None:
    # Arrivals every 4 s, 3 tokens of 1 s. Request 5 arrives at 20 s, as the stall begins: its
    # first token comes at 31 s. 6 and 7 (24 s, 28 s) wait behind it, 8 to 17 until that is made up.
    records = run(Stalling(1.0), Plan(requests(20, 4.0, output=3)), Deadlines(stall_s=60.0))
    ttfts = [record.token_s[0] - record.scheduled_s for record in records]
    assert ttfts[:5] == pytest.approx([1.0] * 5)
    assert ttfts[5:15] == pytest.approx([11.0 - i for i in range(10)])
    assert ttfts[15:] == pytest.approx([1.0] * 5)
    values, _, _ = measure("paced", records, Slo())
    assert values["paced.itl.max"] == pytest.approx(1.0)


def test_a_stall_in_the_middle_of_an_answer_is_a_gap_between_tokens() -> None:
    (record,) = run(Stalling(3.0), Plan([Request(0, 18.0, 4, 3)]), Deadlines(stall_s=60.0))
    assert record.token_s == pytest.approx([21.0, 33.0, 36.0])
    values, _, _ = measure("paced", [record], Slo())
    assert values["paced.itl.max"] == pytest.approx(12.0)
    assert values["paced.tpot.p50"] == pytest.approx(7.5)


class Suspending(OneServer):
    """The machine is suspended for 30 s while request 5 is served: the clock jumps."""

    async def generate(self, request: Request, prompt: Sequence[int]) -> Completion:
        done = await super().generate(request, prompt)
        if request.id == 5:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualTimeLoop)
            loop._jump.now += 30.0
        return done


def test_a_clock_that_jumps_is_late_sending_and_makes_the_replay_invalid() -> None:
    # Arrivals every 1 s, service 0.1 s: request 5 ends at 5.1 s, then it is 35.1 s. Requests 6 to
    # 35 leave at once then, 29.1 s to 0.1 s late, and are served one after another.
    records = run(Suspending(0.1), Plan(requests(60, 1.0)))
    late = [record.sent_s - record.scheduled_s for record in records]  # type: ignore[operator]
    assert late[:6] == pytest.approx([0.0] * 6, abs=1e-3)
    assert late[6:36] == pytest.approx([35.1 - i for i in range(6, 36)], abs=1e-3)
    assert late[36:] == pytest.approx([0.0] * 24, abs=1e-3)
    assert records[6].token_s[0] - records[6].scheduled_s == pytest.approx(29.2)
    values, _, _ = measure("paced", records, Slo())
    with pytest.raises(MeasurementInvalid, match="client was too busy"):
        check_replay("paced", values, records)


def test_the_clock_on_the_wall_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = iter(range(0, -10_000_000, -1000))
    monkeypatch.setattr("time.time", lambda: float(next(jumps)))
    records = run(OneServer(1.0), Plan(requests(5, 2.0)))
    assert [record.token_s[-1] for record in records] == pytest.approx([1, 3, 5, 7, 9])


def test_saturated_offers_everything_at_once() -> None:
    records = run(OneServer(1.0), Plan(requests(5, 100.0), paced=False))
    assert [record.scheduled_s for record in records] == [0.0] * 5
    assert [record.token_s[-1] for record in records] == pytest.approx([1, 2, 3, 4, 5])


def test_requests_leave_at_their_time_whatever_the_engine_does() -> None:
    records = run(Stuck(), Plan(requests(4, 2.0)), Deadlines(request_s=50.0, stall_s=1000.0))
    assert [record.sent_s for record in records] == pytest.approx([0, 2, 4, 6])
    assert all("deadline" in record.error for record in records)


def test_a_refused_request_is_a_failure_and_the_replay_goes_on() -> None:
    records = run(Refusing(1.0), Plan(requests(6, 10.0)))
    assert [record.ok for record in records] == [True, False] * 3
    values, _, _ = measure("paced", records, Slo({"default": {"ttft": 2.0}}))
    assert values["paced.error_share"] == 0.5
    assert values["paced.attainment"] == 0.5
    assert values["paced.ttft.p50"] == pytest.approx(1.0)


def test_a_short_answer_is_counted_and_never_a_success() -> None:
    records = run(Short(1.0), Plan(requests(3, 10.0, output=2)))
    values, _, _ = measure("paced", records, Slo())
    assert values["paced.short_share"] == values["paced.error_share"] == 1.0
    assert "paced.ttft.p50" not in values
    assert "paced.requests_per_s" not in values


def test_several_tokens_a_chunk_are_tokens_not_chunks() -> None:
    (record,) = run(OneServer(1.0, chunk=4), Plan(requests(1, 1.0, output=8)))
    assert record.token_s == pytest.approx([1, 1, 1, 1, 2, 2, 2, 2])
    values, counts, _ = measure("paced", [record], Slo())
    assert values["paced.output_tokens_per_s"] == pytest.approx(8 / 2)
    assert values["paced.tpot.p50"] == pytest.approx(1 / 7)
    assert counts["paced.itl"] == 7


def test_an_engine_that_makes_no_token_is_stalled() -> None:
    with pytest.raises(EngineFault, match="stalled"):
        run(Stuck(), Plan(requests(2, 1.0)), Deadlines(stall_s=30.0))


def test_thinking_users_are_not_a_stall() -> None:
    slow = [Request(0, 0.0, 4, 1), Request(1, 5000.0, 4, 1)]
    assert all(
        record.ok for record in run(OneServer(), Plan(slow), Deadlines(stall_s=30.0, replay_s=9e3))
    )


def test_a_dead_engine_ends_the_replay_with_its_reason() -> None:
    with pytest.raises(EngineFault, match="exit code 1") as caught:
        run(Dying(1.0), Plan(requests(50, 0.1)))
    assert caught.value.reason == "engine_died"


def test_a_replay_past_its_deadline_keeps_what_it_has() -> None:
    records = run(OneServer(1.0), Plan(requests(10, 1.0)), Deadlines(replay_s=4.5))
    assert [record.ok for record in records] == [True] * 4 + [False] * 6
    assert records[-1].sent_s is None
    assert "never sent" in records[-1].error


def test_children_wait_for_their_parents_and_think() -> None:
    session = [
        Request(0, 0.0, 4, 3, session=1),
        Request(1, 0.5, 4, 1, session=1, parents=(0,), gap_s=2.0),
        Request(2, 30.0, 4, 1, session=1, parents=(1,)),
    ]
    records = run(OneServer(1.0), Plan(session))
    # The parent ends at 3; think 2; the child is due at 5, ends at 6; the third keeps its time.
    assert [r.scheduled_s for r in records] == pytest.approx([0.0, 5.0, 30.0])
    opened = run(OneServer(1.0), Plan(session, partly_open=False))
    assert [r.scheduled_s for r in opened] == pytest.approx([0.0, 0.5, 30.0])
    saturated = run(OneServer(1.0), Plan(session, paced=False))
    assert [r.scheduled_s for r in saturated] == pytest.approx([0.0, 3.0, 4.0])


def test_a_deadline_ends_a_session_in_the_middle_of_a_turn() -> None:
    session = [
        Request(0, 0.0, 4, 9, session=1),
        Request(1, 0.5, 4, 1, session=1, parents=(0,), gap_s=2.0),
    ]
    first, second = run(OneServer(1.0), Plan(session), Deadlines(replay_s=4.5))
    assert first.error == "deadline: the replay ended before the answer"
    assert second.error == "deadline: never sent"


def test_a_lead_in_is_sent_and_not_scored() -> None:
    records = run(OneServer(1.0), Plan(requests(10, 2.0), lead_in_s=8.0))
    _, counts, _ = measure("paced", records, Slo())
    assert counts["paced.requests"] == 6
    assert all(record.ok for record in records)


def test_prompts_are_made_ahead_and_in_order() -> None:
    engine = OneServer(0.001)
    run(engine, Plan(requests(600, 0.01)))
    assert list(engine.prompts) == list(range(600))
    assert engine.prompts[3] == [3, 3, 3, 3]


def test_an_empty_plan_gives_no_records() -> None:
    assert run(OneServer(), Plan([])) == []
