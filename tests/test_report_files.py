"""What a finished study leaves for readers and programs: one study, searched and confirmed."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import tuner
from tests.report_case import study
from tuner.cli import app
from tuner.finish import write_all
from tuner.job import Slo
from tuner.report_latency import Sampled, attainment, met_bounds
from tuner.report_text import number
from tuner.results_requests import requests_frame, token_gaps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = study(tmp_path_factory.mktemp("study"), trials=6, repeats=2, members=1, requests=30)
    write_all(out, "tuner run studies/chat.yaml")
    return out


def told(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_first_screen_says_what_how_much_and_how_sure(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    first = text[text.index("<h1>") : text.index("The front</h2>")]
    assert "vllm serve --config presets/" in first
    assert "95 % intervals of the ratio" in first
    assert "“as we run it”" in first
    assert "To know better: " in first or "Enough repeats: " in first


@pytest.mark.parametrize(
    "figure",
    ["front", "timeline", "hypervolume", "arrivals", "lengths", "parallel"]
    + [f"latency-{name}" for name in ("ttft", "e2e", "itl")],
)
def test_the_report_has_every_figure(folder: Path, figure: str) -> None:
    text = (folder / "report.html").read_text()
    head = f'data-figure="{figure}">'
    assert f'id="{figure}"' in text
    start = text.index(head) + len(head)
    data = json.loads(text[start : text.index("</script>", start)])
    assert data["data"]


def test_the_report_stays_small_beside_its_plotting_library(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    assert len(text) - text.index("<script>") > 1e6, "plotly is inlined"
    assert text.index("<script>") < 1e6


def test_percentiles_of_read_back_records_are_those_that_were_measured(folder: Path) -> None:
    place = folder / "trials" / "0"
    measured = json.loads((place / "measurement.json").read_text())["values"]
    frame = requests_frame(place / "requests.parquet")
    paced = frame[frame["measure"] == "paced"]
    for name in ("ttft", "e2e", "tpot"):
        p99 = np.percentile(paced[f"{name}_s"].dropna(), 99)
        assert p99 == pytest.approx(measured[f"paced.{name}.p99"])
    gaps = token_gaps(place / "requests.parquet", "paced")
    assert np.percentile(gaps, 50) == pytest.approx(measured["paced.itl.p50"])
    slo = Slo({"batch": {"e2e": 8.0}, "interactive": {"ttft": 0.12, "e2e": 2.0}})
    assert met_bounds(paced, slo).mean() == pytest.approx(measured["paced.attainment"], abs=0.01)


def test_programs_get_frames(folder: Path) -> None:
    results = tuner.load_results(folder)
    trials, requests = results.trials_frame(), results.requests_frame([0])
    assert trials["trial"].is_unique
    assert {"paced.e2e.p99", "paced.ttft.p50", "max_num_seqs", "start_s"} <= set(trials)
    assert set(requests["part"]) == {"search", "confirm"}
    assert set(requests["trial"]) == {0}
    front = results.front_frame()
    assert (front["paced.e2e.p99.low_ms"] < front["paced.e2e.p99_ms"]).all()


def test_tables_are_written_for_those_without_python(folder: Path) -> None:
    csv, parquet = pd.read_csv(folder / "trials.csv"), pd.read_parquet(folder / "trials.parquet")
    assert list(csv.columns) == list(parquet.columns)
    assert csv["paced.e2e.p99"].to_numpy() == pytest.approx(
        parquet["paced.e2e.p99"].to_numpy(), nan_ok=True
    )


def test_pictures_are_png_and_svg(folder: Path, tmp_path: Path) -> None:
    png, svg = tmp_path / "front.png", tmp_path / "front.svg"
    told("report", str(folder), "--png", str(png), "--svg", str(svg))
    assert png.read_bytes().startswith(b"\x89PNG")
    assert ET.parse(svg).getroot().tag.endswith("svg")
    assert (folder / "trials" / "0" / "latency.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_another_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(folder), "--png", str(tmp_path / "front.gif")])
    assert done.exit_code == 2
    assert "'.gif'" in done.output


def test_markdown_goes_to_stdout_or_a_file(folder: Path, tmp_path: Path) -> None:
    text = told("report", str(folder), "--format", "markdown")
    assert "| against vLLM's defaults |" in text
    told("report", str(folder), "--format", "markdown", "--out", str(tmp_path / "pr.md"))
    assert (tmp_path / "pr.md").read_text().splitlines()[:4] == text.splitlines()[:4]


def test_machines_get_verdict_comparisons_and_front(folder: Path) -> None:
    told_report = json.loads(told("report", str(folder), "--json"))
    assert told_report["verdict"]["headline"]
    assert {one["repeats"] for one in told_report["confirmed"]} == {2}
    members = json.loads(told("front", str(folder), "--json"))["members"]
    assert all(member["interval"] for member in members)


def test_what_is_not_there_any_more_is_left_out(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved, ignore=shutil.ignore_patterns("trials", "report.html"))
    study_file = moved / "study.yaml"
    study_file.write_text(study_file.read_text().replace("trace.jsonl", "gone.jsonl"))
    told("report", str(moved))
    text = (moved / "report.html").read_text()
    assert 'id="latency-e2e"' not in text
    assert 'data-figure="arrivals"' not in text
    assert 'data-figure="front"' in text


def test_percentiles_that_the_slo_bounds_stand_beside_the_shares(folder: Path) -> None:
    file = folder / "trials" / "0" / "requests.parquet"
    requests = requests_frame(file)
    gaps = token_gaps(file, "paced")
    p99 = float(np.percentile(gaps, 99))
    sample = Sampled(0, "ours", "paced", 1, requests[requests["measure"] == "paced"], {"itl": gaps})
    slo = Slo({}, 0.99, {"p99": {"itl": p99}, "p50": {"tpot": 1e-6}})
    heads, ((name, cells),) = attainment([sample], slo)
    assert name == "ours"
    assert [head.split(" ≤")[0] for head in heads] == ["P99 ITL", "P50 TPOT"]
    assert [met for _, met in cells] == [True, False]
    assert cells[0][0] == f"{number(p99 * 1e3)} ms"
