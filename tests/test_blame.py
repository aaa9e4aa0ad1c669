"""A planted cause is named, with its counts; without one nothing is."""

import numpy as np
import pytest

from tuner.blame import Points, level_explained, share_explained
from tuner.config import Json

OPTIONS: dict[str, list[Json]] = {
    "max_model_len": [4096, 8192, 16384, 32768],
    "kv_cache_dtype": ["auto", "fp8"],
    "max_num_seqs": list(range(8, 264, 8)),
    "enforce_eager": [True, False],
    "speculative_config": [None, {"method": "ngram"}],
}


def points(seed: int, n: int = 60) -> Points:
    random = np.random.default_rng(seed)
    return [
        {name: options[random.integers(len(options))] for name, options in OPTIONS.items()}
        for _ in range(n)
    ]


def test_a_threshold_is_found_where_it_was_planted() -> None:
    some = points(1)
    found = share_explained(some, [p["max_model_len"] > 8192 for p in some])
    assert str(found[0].split) == "max_model_len > 8192"
    assert found[0].bad_inside == found[0].inside
    assert found[0].bad_outside == 0
    assert str(found[0].split.other) == "max_model_len <= 8192"


def test_an_option_is_found_among_noise() -> None:
    some, noise = points(2), np.random.default_rng(9).random(60)
    bad = [p["kv_cache_dtype"] == "fp8" or x < 0.1 for p, x in zip(some, noise, strict=True)]
    found = share_explained(some, bad)
    assert str(found[0].split) in ("kv_cache_dtype = fp8", "kv_cache_dtype other than auto")


def test_two_causes_are_found_one_after_another() -> None:
    some = points(3, 160)
    bad = [p["max_model_len"] == 32768 or p["enforce_eager"] is True for p in some]
    names = [one.split.name for one in share_explained(some, bad)]
    assert names == ["enforce_eager", "max_model_len"]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_blamed_without_a_cause(seed: int) -> None:
    some, random = points(seed), np.random.default_rng(seed + 100)
    assert share_explained(some, list(random.random(60) < 0.4)) == []
    assert level_explained(some, list(random.lognormal(size=60))) is None


def test_all_or_none_bad_blames_nobody() -> None:
    some = points(4)
    assert share_explained(some, [True] * 60) == []
    assert share_explained(some, [False] * 60) == []
    assert share_explained([], []) == []


def test_a_level_is_explained_by_medians() -> None:
    some, random = points(5), np.random.default_rng(5)
    levels = [(9 if p["max_num_seqs"] > 128 else 2) * random.uniform(0.8, 1.2) for p in some]
    blame = level_explained(some, levels)
    assert blame is not None
    assert str(blame.split) == "max_num_seqs > 128"
    assert blame.levels is not None
    assert blame.levels[0] > 3 * blame.levels[1]


def test_a_knob_that_some_trials_lack_is_held_against_those_with_it() -> None:
    some = [{"draft": n % 5 + 1} if n % 2 else {} for n in range(80)]
    bad = [p.get("draft", 0) > 3 for p in some]
    assert str(share_explained(some, bad)[0].split) == "draft > 3"


def test_structured_options_are_told_apart() -> None:
    some = points(6)
    bad = [p["speculative_config"] is not None for p in some]
    assert share_explained(some, bad)[0].split.name == "speculative_config"
