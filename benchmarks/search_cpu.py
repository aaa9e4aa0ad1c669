"""The question of ``search.py`` on the real CPU engine: ``python benchmarks/search_cpu.py``.

A run on real engines takes minutes and carries the noise of its moment, so that a few of them rank
nothing. Here every point of a small space was measured once and for all, several times, on real
engines (``search_cpu.py measure``: half an hour, in pieces; see search_cpu_table.py), and the
strategies search that table, over as many seeds as one likes. They are told its values with noise
as large as between the rounds, and charged its seconds; volumes are those of its values.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from search import Bench, parsing
from search_machine import Case, Prices, Result

from tuner.beforehand import at
from tuner.config import EngineConfig, Json, canonical
from tuner.study import StudySpec, load_study

HERE = Path(__file__).parent
STUDY, ROWS = HERE / "search_cpu.yaml", HERE / "search_cpu.csv"
SCORES = ["output_tokens_per_s", "latency_s"]


class Table:
    """What was measured of every point: the geometric means of its scores over the rounds."""

    def __init__(self, spec: StudySpec, rows: Path) -> None:
        self._spec = spec
        names = list(spec.space.names)
        all_rows = pd.read_csv(rows)
        self.rows = all_rows[all_rows["problem"].isna()].copy()
        self.rows["seconds"] = self.rows["replay_s"] + self.rows["other_s"]
        self.rows[SCORES] = np.log(self.rows[SCORES])
        points = self.rows.groupby(names)
        middle = points[[*SCORES, "seconds"]].median()
        self._known = {
            canonical([_plain(value) for value in point]): Result(
                (float(np.exp(one)), float(np.exp(other))), float(seconds)
            )
            for point, (one, other, seconds) in zip(middle.index, middle.to_numpy(), strict=True)
        }
        left = self.rows[SCORES] - points[SCORES].transform("mean")
        #: Relative spread of one measurement, by objective.
        self.noise = np.sqrt((left**2).sum() / (len(left) - len(middle))).tolist()

    def __call__(self, config: EngineConfig) -> Result | None:
        """Return a point's values."""
        return self._known.get(canonical([config.args[name] for name in self._spec.space.names]))

    def reference(self) -> Iterator[EngineConfig]:
        """Return all points."""
        return map(self._spec.config, self._spec.space.points())

    def prices(self, hot: frozenset[str]) -> Prices:
        """Return medians over the cold keys' first starts, the later ones, and live changes."""
        cold = [name for name in self._spec.space.names if name not in hot]
        starts = self.rows[self.rows["start_s"] > 0]
        again = starts.duplicated(cold)
        live = self.rows.loc[self.rows["change_s"] > 0, "change_s"]
        groups = starts.loc[~again, "start_s"], starts.loc[again, "start_s"], live
        return Prices(*(float(each.median()) for each in groups))


def _plain(value: Json) -> Json:
    """Return a value of a table as JSON has it."""
    return value.item() if isinstance(value, np.generic) else value


def case_of(spec: StudySpec, table: Table, facts: Mapping[str, Json]) -> Case:
    """Return the case; ``facts`` are what the installed vLLM said when the table was measured."""
    hot, warm = (at(facts["temperatures"], each) for each in ("hot", "warm"))
    one, other = spec.objectives
    seqs = tuple(spec.space["max_num_seqs"].domain.values())
    return Case(
        spec.space, spec.base, facts["default"], (one, other), hot, warm, table.prices(hot),
        tuple(table.noise), seqs,
    )  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Measure what is missing of the table, or search it."""
    parser = parsing(__doc__, "vllm-tuner-search-cpu")
    parser.add_argument("what", nargs="?", choices=["search", "measure"], default="search")
    parser.add_argument("--table", type=Path, default=ROWS, help="what to search")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each point")
    parser.add_argument("--minutes", type=float, default=60.0, help="of this piece")
    given = parser.parse_args(arguments)
    spec = load_study(STUDY)
    if given.what == "measure":
        from search_cpu_table import measure

        given.folder.mkdir(parents=True, exist_ok=True)
        rows = given.folder / ROWS.name
        done = measure(spec, given.folder, rows, given.rounds, given.minutes)
        print(f"{rows}: all is measured" if done else f"{rows}: not all is measured, call it again")
        return
    facts = json.loads(given.table.with_suffix(".json").read_text())
    table = Table(spec, given.table)
    case = case_of(spec, table, facts)
    print(f"{case.prices}, noise {case.noise}", end="\n\n")
    print(Bench("cpu", case, table, given.folder).compared(given.rows, given.seeds))


if __name__ == "__main__":
    main(sys.argv[1:])
