"""Every real file reads with the numbers of its README and the measured table, or says why not."""

import pytest

from tests.traces.shared import SHARED, needs_shared
from tuner import traces
from tuner.errors import TraceError
from tuner.traces.describe import describe

pytestmark = needs_shared

#: File -> (format, requests, options).
READ = {
    "azure_llm_2023/AzureLLMInferenceTrace_conv.csv": ("azure", 19_366),
    "azure_llm_2023/AzureLLMInferenceTrace_code.csv": ("azure", 8_819),
    "otel_genai_examples/azure_style_trace.csv": ("azure", 20),
    "burstgpt_v3_head/burstgpt_v1.native_3rows.csv": ("burstgpt", 3),
    "burstgpt_v3_head/burstgpt_v3.native_4rows.csv": ("burstgpt", 4),
    "burstgpt_v3_head/burstgpt_v3.first105.derived.csv": ("burstgpt", 105),
    "mooncake_conversation/conversation_trace.first28min.jsonl": ("mooncake", 5_294),
    "mooncake_synthetic/synthetic_trace.jsonl": ("mooncake", 3_993),
    "otel_genai_examples/prefix_sharing_example.json": ("otel", 7),
    "ragpulse/0_trace.first72h.jsonl": ("ragpulse", 3_609),
    "servegen_deepseek_r1/generated_20min_2rps.csv": ("servegen", 2_488),
    "splitwise_sim/test_trace.csv": ("splitwise", 3),
    "vidur_arxiv_lengths/arxiv_summarization_stats.first5000.csv": ("vidur", 5_000),
    "vidur_arxiv_lengths/splitwise_code.csv": ("vidur", 8_819),
    "weka_agentic_coding": ("weka", 423),
}
#: File -> what the refusal says.
REFUSED = {
    "otel_genai_examples/simple_chain.json": "none of 3 GenAI spans has token counts",
    "otel_genai_examples/fan_in_dependencies.json": "none of 4 GenAI spans has token counts",
    "otel_genai_examples/parallel_requests.json": "none of 5 GenAI spans has token counts",
    "ragpulse/1_sys_prompt.filtered.jsonl": "a length table",
    "ragpulse/2_passages.filtered.jsonl": "a length table",
    "ragpulse/3_history.filtered.jsonl": "a length table",
    "ragpulse/4_user_input.filtered.jsonl": "a length table",
    "ragpulse/5_web_search.filtered.jsonl": "a length table",
    "servegen_deepseek_r1/clients_72000_75600.csv": "parameters",
    "servegen_deepseek_r1/datasets_window64800.json": "parameters",
    "azure_llm_2023/README.md": "format not recognised",
    "azure_llm_2023/LICENSE.CC-BY-4.0.txt": "format not recognised",
}
#: File -> span, rate, CV, IDC at 1/10/60 s, prompt mean/P50/P99/max, output the same, correlation,
#: prefix hits; None where the table has no value.
TABLE = {
    "azure_llm_2023/AzureLLMInferenceTrace_conv.csv": (
        3502, 5.53, 1.09, (1.39, 3.86, 16.1),
        (1155, 1020, 4142, 14050), (211, 129, 601, 1000), -0.11, None,
    ),
    "azure_llm_2023/AzureLLMInferenceTrace_code.csv": (
        3436, 2.57, 13.2, (13.2, 71.6, 164),
        (2048, 1469, 7436, 7437), (28, 13, 251, 1899), 0.00, None,
    ),
    "mooncake_conversation/conversation_trace.first28min.jsonl": (
        1677, 3.16, 2.91, (7.4, 1.9, 2.6),
        (12982, 7724, 92556, 123192), (347, 357, 1103, 2000), 0.08, 0.345,
    ),
    "mooncake_synthetic/synthetic_trace.jsonl": (
        1022, 3.91, 1.01, (1.1, 1.2, 1.2),
        (15326, 11587, 66456, 191378), (149, 69, 768, 893), -0.37, 0.651,
    ),
    "ragpulse/0_trace.first72h.jsonl": (
        258775, 0.0139, 3.12, (1.0, 1.1, 1.8),
        (2921, 3142, 5289, 7712), (272, 219, 908, 2183), 0.40, 0.315,
    ),
    "burstgpt_v3_head/burstgpt_v3.first105.derived.csv": (
        32700, 0.0032, 1.87, (1.0, 1.0, 1.2),
        (1180, 384, 13082, 25085), (201, 98, 861, 879), None, None,
    ),
    "servegen_deepseek_r1/generated_20min_2rps.csv": (
        1200, 2.07, 1.32, (2.7, 3.6, 5.1),
        (962, 280, 19875, 34201), (767, 452, 9218, 17860), None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_reads_without_naming_the_format(name):
    fmt, requests = READ[name]
    trace = traces.read(SHARED / name)
    assert (trace.provenance.format, len(trace)) == (fmt, requests)
    assert trace.provenance.rows_read == len(trace) + sum(trace.provenance.dropped.values())
    assert trace.provenance.source_sha256
    assert (trace.prompt_tokens >= 1).all()
    assert (trace.output_tokens >= 1).all()
    assert (trace.arrival_us[1:] >= trace.arrival_us[:-1]).all()
    assert trace.arrival_us[0] == 0


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_the_reason(name):
    with pytest.raises(TraceError, match=REFUSED[name]):
        traces.read(SHARED / name)


def test_every_file_is_in_one_of_the_tables():
    known = {*READ, *REFUSED}
    data = [
        str(file.relative_to(SHARED))
        for file in SHARED.glob("*/*")
        if file.suffix in (".csv", ".json", ".jsonl")
    ]
    assert set(data) <= known


def test_each_session_file_reads_alone():
    files = sorted((SHARED / "weka_agentic_coding" / "traces").glob("*.json"))
    assert sum(len(traces.read(file)) for file in files) == 423
    assert len(files) == 25


@pytest.mark.parametrize("name", TABLE)
def test_description_matches_the_measured_table(name):
    span, rate, cv, idc, prompt, output, correlation, hit = TABLE[name]
    facts = describe(traces.read(SHARED / name))
    assert facts["span_s"] == pytest.approx(span, abs=0.51)
    assert facts["rate_per_s"] == pytest.approx(rate, rel=0.01)
    assert facts["cv"] == pytest.approx(cv, rel=0.01)
    assert [facts["idc"][w] for w in ("1", "10", "60")] == pytest.approx(list(idc), rel=0.06)
    for side, wanted in (("prompt_tokens", prompt), ("output_tokens", output)):
        found = [facts[side][key] for key in ("mean", "p50", "p99", "max")]
        assert found == pytest.approx(list(wanted), abs=0.6)
    if correlation is not None:
        assert facts["correlation"] == pytest.approx(correlation, abs=0.006)
    if hit is not None:
        assert facts["prefix"]["hit_share"] == pytest.approx(hit, abs=0.0006)


def test_coarse_time_is_seen_in_the_data():
    trace = traces.read(SHARED / "mooncake_conversation/conversation_trace.first28min.jsonl")
    assert trace.resolution_us == 3_000_000
    assert "steps of 3 s" in " ".join(describe(trace)["notes"])


def test_agentic_sessions_keep_prefixes_think_times_and_sub_agents():
    trace = traces.read(SHARED / "weka_agentic_coding")
    facts = describe(trace)
    assert facts["prefix"]["hit_share"] == pytest.approx(0.901, abs=0.001)
    assert facts["sessions"]["count"] == 25
    assert facts["sessions"]["think_s_p50"] == pytest.approx(8, abs=2)
    early = facts["sessions"]["too_early_share"]
    assert early["1"] < 0.01
    assert 0.25 < early["2"] < early["4"] < 0.75


def test_messages_stand_in_for_missing_token_counts_when_asked():
    trace = traces.read(SHARED / "otel_genai_examples/simple_chain.json", chars_per_token=4)
    assert len(trace) == 3
    assert [request.parents for request in trace] == [(), (0,), (1,)]
    assert [request.gap_s for request in trace] == [None, 0.5, 1.0]
    assert trace[1].blocks[0] == trace[0].blocks[0]
    assert "estimates" in trace.provenance.notes[0]


def test_spans_wait_for_their_parent_spans():
    trace = traces.read(SHARED / "otel_genai_examples/prefix_sharing_example.json")
    assert trace.prompt_tokens.tolist() == [50, 45, 100, 180, 270, 380, 40]
    assert [request.parents for request in trace] == [(), (), (), (2,), (3,), (4,), ()]
    assert trace[3].gap_s == 1.0
