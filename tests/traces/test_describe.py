"""The description of a trace, in numbers and pictures."""

import numpy as np
import pytest
from rich.console import Console

from tuner.trace import Trace
from tuner.traces import picture
from tuner.traces.describe import describe, dispersion, fits, gap_cv, length_histogram
from tuner.traces.synthetic import generate


def test_poisson_has_cv_and_dispersion_of_one():
    trace = generate({"requests": 50_000, "rate_per_s": 10})
    facts = describe(trace)
    assert facts["cv"] == pytest.approx(1, abs=0.02)
    assert list(facts["idc"].values()) == pytest.approx([1, 1, 1], abs=0.15)


@pytest.mark.parametrize("times", [[], [0], [0, 0], [0, 0, 0], [0, 1]])
def test_few_requests_are_described_without_numbers_that_are_none(times):
    trace = Trace.build(times, [5] * len(times), [1] * len(times))
    facts = describe(trace, 3)
    assert facts["requests"] == len(times)
    assert facts["cv"] is None
    assert set(facts["idc"].values()) == {None}
    assert facts["correlation"] is None
    shown = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    shown.print(picture.terminal(trace, facts))
    shown.file.close()


def test_dispersion_counts_whole_windows_only():
    times = np.asarray([0, 1, 2, 10, 11, 20, 29, 30]) * 100_000
    # Windows of 1 s: 3, 2, 2 requests; the last one is not over.
    assert dispersion(times, 1) == pytest.approx(np.var([3, 2, 2]) / np.mean([3, 2, 2]))
    assert gap_cv(np.asarray([0, 10, 20, 30])) == 0


def test_what_does_not_fit_is_counted_with_its_tokens():
    trace = Trace.build([0, 1, 2], [10, 50, 100], [5, 50, 1])
    assert fits(trace, 100) == {
        "max_model_len": 100,
        "longest_tokens": 101,
        "too_long": 1,
        "too_long_share": pytest.approx(1 / 3),
        "too_long_token_share": pytest.approx(101 / 216),
    }


def test_histogram_counts_everything():
    edges, counts = length_histogram(np.asarray([1, 1, 7, 1000, 99_999]))
    assert counts.sum() == 5
    assert (edges[0], edges[-1]) == (1, 99_999)
    assert length_histogram(np.asarray([5, 5]))[1].sum() == 2


def test_sparkline_shows_what_is_not_zero():
    assert picture.sparkline([0, 1, 1000]) == " ▁█"
    assert picture.sparkline([0, 0]) == "  "
    assert picture.sparkline([]) == ""


def test_page_is_self_contained_and_escapes_the_name():
    trace = Trace.build([0, 1], [5, 6], [1, 2], name="<script>alert(1)</script>")
    page = picture.page(trace, describe(trace, 100))
    assert "<script>alert(1)" not in page
    assert "Arrivals per second" in page
    assert "src=" not in page.split("</style>")[0]
    assert 'src="http' not in page
