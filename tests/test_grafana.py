"""The monitoring files of a comparison: what Prometheus and Grafana take, and real vLLM names."""

import importlib.util
import itertools
import math
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tuner.compare import Compared, Question, Row
from tuner.compare_files import write
from tuner.compare_sides import Side
from tuner.config import EngineConfig
from tuner.engines import vllm_metrics
from tuner.grafana import TOPICS, dashboard
from tuner.intervals import ratio_interval
from tuner.metrics import NAMES
from tuner.prometheus import exposition, gauge_name

UP, LATE = "saturated.output_tokens_per_s", "paced.e2e.p99"
SIDES = (
    Side("7", EngineConfig("m", {"max_num_seqs": 4})),
    Side('b\\a"d\nname', EngineConfig("m", {"max_num_seqs": 8})),
)
VALUES = {UP: ((100.0, 104.0), (150.0, 158.0)), LATE: ((0.5, 0.51), (0.4, 0.42))}
#: Of Grafana's documented JSON model.
KEYS = {
    "id", "uid", "title", "tags", "timezone", "editable", "graphTooltip", "panels", "time",
    "timepicker", "templating", "annotations", "refresh", "schemaVersion", "version", "links",
}  # fmt: skip
#: All that vLLM 0.32 defines, as far as the dashboard is concerned.
ENGINE = {name.removesuffix("_bucket").removesuffix("_total")
          for topic in TOPICS for query in topic.engine.values()
          for name in re.findall(r"vllm:\w+", query)}  # fmt: skip


def compared(folder: Path) -> Compared:
    rows = tuple(
        Row(metric, metric == UP, a, b, ratio_interval(b, a), "better", 3)
        for metric, (a, b) in VALUES.items()
    )
    question = Question(folder, ("7", "bad"))
    return Compared(question, "my-study", SIDES, rows, folder / "c", "server", (), VALUES)


def samples(text: str) -> dict[tuple[str, str, str], float]:
    return {
        (s.name, s.labels.get("side", s.labels.get("metric", "")), s.labels["estimate"]): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_prometheus_reads_both_sides_with_intervals_and_ratios(tmp_path: Path) -> None:
    found = samples(exposition(compared(tmp_path)))
    gauge = "tuner_saturated_output_tokens_per_second"
    assert found[gauge, "a", "mean"] == pytest.approx(102)
    assert found[gauge, "b", "mean"] == pytest.approx(154)
    assert found[gauge, "a", "low"] < 102 < found[gauge, "a", "high"]
    ratio = math.sqrt(150 * 158 / (100 * 104))
    assert found["tuner_ratio", UP, "mean"] == pytest.approx(ratio)
    assert found["tuner_paced_e2e_p99_seconds", "b", "mean"] == pytest.approx(0.41)


def test_labels_say_which_configuration_of_which_study(tmp_path: Path) -> None:
    families = text_string_to_metric_families(exposition(compared(tmp_path)))
    labels = [s.labels for f in families for s in f.samples if s.name.startswith("tuner_paced")]
    assert {(found["side"], found["config"], found["name"]) for found in labels} == {
        ("a", SIDES[0].config.key, "7"),
        ("b", SIDES[1].config.key, SIDES[1].name),
    }
    assert {found["study"] for found in labels} == {"my-study"}


def test_every_metric_has_a_gauge_name_of_its_own() -> None:
    names = [gauge_name(metric) for metric in NAMES]
    assert len(set(names)) == len(NAMES)
    assert all(re.fullmatch(r"tuner_[a-z][a-z0-9_]*", name) for name in names)


def test_the_dashboard_has_grafanas_shape() -> None:
    board = dashboard("my-study", NAMES, ENGINE, "0.32.0")
    assert board.keys() >= KEYS
    assert board["id"] is None
    assert 8 <= len(board["uid"]) <= 40
    panels = board["panels"]
    assert len(panels) == 1 + 2 * len(TOPICS)
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel.keys() >= {"id", "type", "title", "gridPos", "targets", "datasource"}
        at = panel["gridPos"]
        assert at.keys() == {"x", "y", "w", "h"}
        assert at["x"] >= 0
        assert at["x"] + at["w"] <= 24
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert all(target["expr"] for target in panel["targets"])
    for one, other in itertools.combinations((panel["gridPos"] for panel in panels), 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
    variables = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", str(panels)))
    assert used - {"__rate_interval"} <= variables


def test_study_and_engine_stand_side_by_side() -> None:
    panels = dashboard("my-study", NAMES, ENGINE, "0.32.0")["panels"][1:]
    for ours, engine in zip(panels[::2], panels[1::2], strict=True):
        assert ours["gridPos"]["y"] == engine["gridPos"]["y"]
        assert all("tuner_" in target["expr"] for target in ours["targets"])
        assert all("vllm:" in target["expr"] for target in engine["targets"])
        assert ours["fieldConfig"]["defaults"]["unit"] == engine["fieldConfig"]["defaults"]["unit"]


def test_what_was_not_measured_or_is_not_defined_is_not_asked_for() -> None:
    board = dashboard("my-study", [LATE], ["vllm:num_preemptions"], "0.24.0")
    queries = [target["expr"] for panel in board["panels"][1:] for target in panel["targets"]]
    assert len(queries) == 2
    assert queries[0].startswith("tuner_paced_e2e_p99_seconds{")
    assert "vllm:num_preemptions_total" in queries[1]
    without = dashboard("my-study", [], [], "")["panels"]
    assert len(without) == 1


def test_our_gauges_are_those_of_the_file() -> None:
    for topic in TOPICS:
        assert set(topic.ours) <= {*NAMES, "capacity.requests_per_s"}


def test_every_engine_metric_is_defined_by_the_installed_vllm() -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("no vLLM is installed")
    source = (Path(spec.origin).parent / "v1" / "metrics" / "loggers.py").read_text()
    for name in ENGINE:
        assert f'"{name}"' in source, f"{name} is no metric of the installed vLLM"
    assert vllm_metrics.names() >= ENGINE


def test_the_files_of_a_comparison(tmp_path: Path) -> None:
    files = write(compared(tmp_path))
    assert [file.name for file in files] == ["compare.json", "compare.prom", "grafana.json"]
    assert samples(files[1].read_text())
