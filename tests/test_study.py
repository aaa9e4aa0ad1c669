"""A whole study: what it says, what is refused, and that its resolved text means the same."""

from pathlib import Path

import pytest

from tests.study_case import load, problems, problems_of, study_text, write
from tuner.config import EngineConfig, canonical
from tuner.errors import StudyError
from tuner.job import Deadlines
from tuner.study import Baseline, EngineSpec, load_study
from tuner.study_hardware import Hardware
from tuner.study_reader import KEYS
from tuner.study_sections import (
    SAMPLERS,
    Budget,
    Confirm,
    RaySection,
    StrategySection,
)

ROOT = Path(__file__).parent.parent


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    spec = load(tmp_path)
    assert spec.name == "case"
    assert spec.base == EngineConfig("org/model")
    assert spec.engine == EngineSpec("simulated")
    assert spec.budget == Budget(trials=3)
    assert spec.strategy == StrategySection("priced", "tpe", 0)
    assert spec.confirm == Confirm(5, 3)
    assert (spec.storage, spec.ray, spec.repeats) == (None, RaySection(), 1)
    assert spec.early_end
    assert (spec.baselines, spec.constraints, spec.hardware, spec.warnings) == ((), (), None, ())


FULL = {
    "name": "full",
    "model": "{name: org/model, load_format: dummy, revision: 'off'}",
    "engine": """
  kind: vllm
  args: {max-model-len: 4K, compilation-config: {cudagraph_capture_sizes: [1, 2, 4]}}
  env: {OMP_NUM_THREADS: 2, VLLM_LOGGING_LEVEL: DEBUG}
  cpus: 2
  deadlines: {start_s: 100, stall_s: 5}
  options: {start_s: 60}""",
    "space": """
  knobs:
    a: {int: [4, 64], log: true}
    b: {float: [0.1, 0.9], step: 0.2, when: {c: [x, 'off']}}
    c: {choice: [x, 'off', '8k', 'true', null]}
    d: {choice: {none: null, 'on': {method: ngram, k: [1, 2]}}, when: {a: 4}}
  fixed: {e: 'yes', f: {g: '1e3'}}
  rules: [a < max_model_len]""",
    "workload": """
  name: w
  synthetic: {requests: 30, system_prompts: {count: 2, tokens: 16}}
  window: {start_s: 1, duration_s: 10}
  transforms: [{spread_ties: false}, {head: 20}]
  measures: [paced, saturated]
  slo: {ttft_ms: 10, classes: {batch: {e2e_ms: 99}}}
  warmup: {requests: 3}
  held_out: 0.25
  sessions: open
  seed: 9""",
    "objectives": "[{metric: paced.goodput, direction: maximize}]",
    "constraints": "[{metric: paced.e2e.p99, max_ms: 900, min: 0}]",
    "budget": "{trials: 30, minutes: 90, gpu_hours: 2.5}",
    "strategy": "{name: plain, sampler: gp, seed: 4}",
    "confirm": "{members: 0, repeats: 7}",
    "baselines": "[{name: now, args: {max-num-seqs: 8}}]",
    "storage": "sqlite:///x.db",
    "ray": "{address: auto, slots: 2, gpus: 4}",
    "repeats": "2",
    "early_end": "false",
    "hardware": "{gpu: H200, gpus: 8, memory_gib: 139.8}",
}


def test_every_section_is_read(tmp_path: Path) -> None:
    spec = load(tmp_path, **FULL)
    assert spec.base == EngineConfig(
        "org/model",
        {
            "load_format": "dummy",
            "revision": "off",
            "max_model_len": 4096,
            "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]},
        },
        {"OMP_NUM_THREADS": "2", "VLLM_LOGGING_LEVEL": "DEBUG"},
    )
    assert spec.engine == EngineSpec(
        "vllm", 2.0, Deadlines(start_s=100, stall_s=5), {"start_s": 60}
    )
    assert spec.space.names == ("a", "c", "b", "d")
    assert spec.strategy == StrategySection("plain", "gp", 4)
    assert spec.baselines == (Baseline("now", {"max_num_seqs": 8}),)
    assert spec.ray == RaySection("auto", 2, 4)
    assert spec.hardware == Hardware("H200", 8, 139.8)
    assert (spec.repeats, spec.storage, spec.confirm.members) == (2, "sqlite:///x.db", 0)
    assert spec.early_end is False


def test_the_resolved_text_is_a_study_that_means_the_same(tmp_path: Path) -> None:
    spec = load(tmp_path, **FULL)
    text = spec.resolved()
    again = load_study(write(tmp_path, text, "elsewhere/study.yaml"))
    assert again == spec
    assert again.resolved() == text
    assert canonical(again.definition()) == canonical(spec.definition())


def test_the_resolved_text_finds_its_files_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, '{"t_us": 0, "in_tok": 5, "out_tok": 2}\n', "traces/t.jsonl")
    write(tmp_path, "{}", "models/m/config.json")
    monkeypatch.chdir(tmp_path)
    path = write(
        Path(), study_text(model="{path: models/m}", workload="{trace: {path: traces/t.jsonl}}")
    )
    spec = load_study(path)
    assert spec.base.model == str(tmp_path / "models/m")
    monkeypatch.chdir("/")
    again = load_study(write(tmp_path, spec.resolved(), "results/x/study.yaml"))
    assert again == spec
    assert len(again.workload().trace) == 1


@pytest.mark.parametrize(
    ("key", "section", "changed"),
    [
        ("objectives", "[{metric: paced.e2e.p99, direction: minimize}]", True),
        ("constraints", "[{metric: paced.error_share, max: 0}]", True),
        ("space", "{knobs: {max-num-seqs: {int: [4, 65], log: true}}}", True),
        ("workload", "{synthetic: {requests: 21}}", True),
        ("workload", "{name: renamed, synthetic: {requests: 20}}", False),
        ("model", "{name: org/other}", True),
        ("engine", "{kind: vllm}", True),
        ("engine", "{kind: simulated, args: {dtype: half}}", True),
        ("engine", "{kind: simulated, env: {A: b}}", True),
        ("engine", "{kind: simulated, deadlines: {start_s: 1}}", False),
        ("budget", "{trials: 4}", False),
        ("strategy", "{sampler: random}", False),
        ("name", "other", False),
        ("confirm", "{members: 1}", False),
        ("baselines", "[{name: b, args: {x: 1}}]", False),
    ],
)
def test_the_definition_is_what_a_resumed_study_may_not_change(
    tmp_path: Path, key: str, section: str, changed: bool
) -> None:
    before = canonical(load(tmp_path).definition())
    after = canonical(load(tmp_path, **{key: section}).definition())
    assert (before != after) is changed


def test_the_words_of_a_study_are_those_of_the_tables() -> None:
    from tuner.strategies.plain import SAMPLERS as MADE
    from tuner.strategies.table import DEFAULT

    assert set(SAMPLERS) == set(MADE)
    assert StrategySection().name == DEFAULT


def test_a_point_becomes_a_configuration(tmp_path: Path) -> None:
    config = load(tmp_path, **FULL).config({"a": 4, "c": None, "d": {"method": "ngram"}})
    assert config.args["a"] == 4
    assert config.args["e"] == "yes"
    assert "c" not in config.args


@pytest.mark.parametrize(
    ("section", "text", "problem"),
    [
        ("budgt", "{trials: 1}",
         "budgt (line 6): unknown key. Did you mean budget? Known: name, model, engine, space, "
         f"{', '.join(KEYS[4:])}."),
        ("name", "a/b",
         'name (line 6): "a/b" names a folder: use letters, digits, \'.\', \'_\', \'-\'.'),
        ("name", "true", "name (line 6): needs text, found true: quote it if it is meant as text."),
        ("repeats", "0", "repeats (line 6): needs a number of at least 1, found 0."),
        ("storage", "study.db",
         'storage (line 6): "study.db" is no storage URL: write sqlite:///study.db or '
         "postgresql+psycopg://host/database, or leave it out for a file of its own."),
        ("budget", "{}", "budget (line 5): needs at least one of trials, minutes, gpu_hours."),
        ("budget", "[3]", "budget (line 5): needs a mapping (key: value), found a list."),
        ("budget", "{minutes: -1}",
         "budget.minutes (line 5): needs a number above 0, found -1."),
        ("budget", "{hours: 1}",
         "budget.hours (line 5): unknown key. Did you mean gpu_hours? "
         "Known: trials, minutes, gpu_hours."),
        ("strategy", "{sampler: TPE}",
         'strategy.sampler (line 6): needs one of tpe, random, qmc, gp, nsga2, grid; found "TPE". '
         "Did you mean tpe?"),
        ("strategy", "{name: ride_along}",
         "strategy.name (line 6): needs one of plain, ride-along, staged, priced; "
         'found "ride_along". Did you mean ride-along?'),
        ("engine", "{kind: vlm}",
         'engine.kind (line 2): needs one of vllm, server, simulated; found "vlm". '
         "Did you mean vllm?"),
        ("engine", "{kind: vllm, env: {X: true}}",
         "engine.env.X (line 2): an environment variable is text: write '1' or 'True'."),
        ("engine", "{kind: vllm, args: {x: }}",
         "engine.args.x (line 2): has no value: leave the key out to have the engine's default."),
        ("engine", "{kind: vllm, args: {a-b: 1, a_b: 2}}",
         "engine.args.a_b (line 2): a_b is given twice: dashes and underscores are the same."),
        ("engine", "{kind: vllm, deadlines: {start: 9}}",
         "engine.deadlines.start (line 2): unknown key. Did you mean start_s? "
         "Known: start_s, request_s, replay_s, stall_s, trial_s."),
        ("model", "", "model (line 1): is missing: give {path: ...} or {name: org/model}."),
        ("model", "3",
         "model (line 1): needs a mapping, found 3: give {path: ...} or {name: org/model}."),
        ("model", "{name: a, path: b}",
         "model (line 1): needs exactly one of path, name; found path and name."),
        ("model", "{name: 3}",
         "model.name (line 1): needs text, found 3: quote it if it is meant as text."),
        ("model", "{name: a/b/c}",
         'model.name (line 1): "a/b/c" is no model name (org/model); a path goes in path.'),
        ("model", "{name: a, lod-format: dummy}",
         "model.lod-format (line 1): unknown key. Did you mean load_format? "
         "Other engine arguments go in engine.args."),
        ("baselines", "[throughput]",
         'baselines[0] (line 6): needs {name, args} or {name, config}, found "throughput".'),
        ("baselines", "[{args: {}}]",
         "baselines[0].name (line 6): needs text, found nothing (null)."),
        ("baselines", "[{name: a}, {name: a}]", "baselines[1] (line 6): a is given twice."),
        ("space", None, "space: is missing: give it inline, or name a file."),
        ("workload", "", "workload (line 4): is missing: give it inline, or name a file."),
    ],
)  # fmt: skip
def test_faulty_sections(tmp_path: Path, section: str, text: str | None, problem: str) -> None:
    assert problems(tmp_path, **{section: text}) == [f"case.yaml: {problem}"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{path: nope}", "model.path (line 1): there is no directory "),
        ("{path: empty}", "holds no config.json: is it a model?"),
        (
            "empty/nope",
            "there is no directory empty/nope here; for a name on the hub write {name: ...}.",
        ),
        ("./nope", "model (line 1): there is no directory "),
    ],
)
def test_a_model_that_is_not_there(tmp_path: Path, model: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (problem,) = problems(tmp_path, model=model)
    assert message in problem


def test_a_bare_model_is_a_directory_here_or_a_name(tmp_path: Path) -> None:
    write(tmp_path, "{}", "models/m/config.json")
    assert load(tmp_path, model="models/m").base.model == str(tmp_path / "models/m")
    assert load(tmp_path, model="org/m").base.model == "org/m"


def test_a_password_in_the_storage_url_warns(tmp_path: Path) -> None:
    (warning,) = load(tmp_path, storage="postgresql://me:secret@host/db").warnings
    assert warning.endswith(
        "storage (line 6): holds a password, which is written to the study's folder: use ~/.pgpass."
    )


def test_speculation_on_random_weights_warns(tmp_path: Path) -> None:
    space = "{knobs: {speculative-config: {choice: {none: null, few: {method: ngram}}}}}"
    more = {"space": space, "budget": "{trials: 2}"}
    assert load(tmp_path, **more).warnings == ()
    random = "{name: org/model, load_format: dummy}"
    (warning,) = load(tmp_path, **more, model=random).warnings
    assert "space.knobs.speculative-config (line 3): random weights" in warning


def test_problems_of_every_file_come_at_once(tmp_path: Path) -> None:
    write(tmp_path, "knobs:\n  a: {int: [2, 1]}\n", "space.yaml")
    write(tmp_path, "synthetic: {}\nwarmup: {requests: -1}\n", "work/load.yaml")
    assert problems(
        tmp_path,
        "repeats=0",
        space="space.yaml",
        workload="work/load.yaml",
        budget="{trials: none}",
        objectives="[{metric: paced.e2e.p98, direction: minimize}]",
    ) == [
        "space.yaml: knobs.a.int (line 2): low 2 is above high 1: swap them.",
        "work/load.yaml: warmup.requests (line 2): needs a number of at least 0, found -1.",
        'case.yaml: objectives[0].metric (line 6): there is no metric "paced.e2e.p98". '
        "Did you mean paced.e2e.p99?",
        'case.yaml: budget.trials (line 5): needs a whole number, found the text "none".',
        "--set: repeats: needs a number of at least 1, found 0.",
    ]


@pytest.mark.parametrize("section", FULL)
@pytest.mark.parametrize(
    "text", ["", "3", "x", "[1]", "[[1]]", "{a: 1}", "[{a: 1}]", "{a: {b: 1}}"]
)
def test_no_message_speaks_as_pydantic_does(tmp_path: Path, section: str, text: str) -> None:
    try:
        load(tmp_path, **{section: text})
    except StudyError as error:
        told = str(error)
    else:
        return
    for jargon in ("Input should", "Value error", "Extra inputs", "Field required", "pydantic"):
        assert jargon not in told


OVERRIDES = [
    ("budget.trials=7", lambda s: s.budget.trials, 7),
    ("budget.minutes=1e1", lambda s: s.budget.minutes, 10.0),
    ("budget={minutes: 3}", lambda s: s.budget, Budget(minutes=3)),
    ("strategy.seed=5", lambda s: s.strategy.seed, 5),
    ("engine.args.max_model_len=8k", lambda s: s.base.args["max_model_len"], 8000),
    ("space.knobs.max_num_seqs.int=[1, 2]", lambda s: s.space["max_num_seqs"].domain.high, 2),
    ("space.knobs.max-num-seqs.int[1]=9", lambda s: s.space["max_num_seqs"].domain.high, 9),
    ("space.knobs.max-num-seqs.int.1=9", lambda s: s.space["max_num_seqs"].domain.high, 9),
    ('space.knobs."cc.mode"={choice: [1, 2]}', lambda s: s.space.names[-1], "cc.mode"),
    ("workload.transforms[0]={head: 3}", lambda s: len(s.workload().trace), 3),
    ("objectives[0]={metric: paced.e2e.p50, direction: minimize}",
     lambda s: s.objectives[0].metric, "paced.e2e.p50"),
    ("name=other", lambda s: s.name, "other"),
    ("storage=null", lambda s: s.storage, None),
    ("storage=sqlite:///a=b.db", lambda s: s.storage, "sqlite:///a=b.db"),
]  # fmt: skip


@pytest.mark.parametrize(("override", "value", "expected"), OVERRIDES)
def test_overrides(tmp_path: Path, override: str, value: object, expected: object) -> None:
    assert callable(value)
    assert value(load(tmp_path, override)) == expected


def test_an_override_reaches_through_a_dotted_name_in_a_named_file(tmp_path: Path) -> None:
    write(tmp_path, "knobs:\n  cc.mode: {choice: [1, 2]}\n", "space.yaml")
    spec = load(tmp_path, "space.knobs.cc.mode.choice=[1, 2, 3]", space="space.yaml")
    assert spec.space["cc.mode"].domain.size == 3


def test_later_overrides_win_and_whole_sections_come_first(tmp_path: Path) -> None:
    write(tmp_path, "synthetic: {requests: 4}\n", "w.yaml")
    spec = load(
        tmp_path,
        "workload.warmup.requests=1",
        f"workload={tmp_path}/w.yaml",
        "budget.trials=1",
        "budget.trials=2",
    )
    assert (len(spec.workload().trace), spec.workload().warmup_requests) == (4, 1)
    assert spec.budget.trials == 2


def test_paths_in_overrides_start_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, '{"t_us": 0, "in_tok": 5, "out_tok": 2}\n', "here/t.jsonl")
    path = write(tmp_path, study_text(workload="{trace: {path: missing.jsonl}}"), "there/case.yaml")
    monkeypatch.chdir(tmp_path / "here")
    spec = load_study(path, ["workload.trace.path=t.jsonl"])
    assert len(spec.workload().trace) == 1


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("budget.trials", "--set: budget.trials: needs path=value, as budget.trials=20."),
        ("=3", "--set: =3: needs path=value, as budget.trials=20."),
        ("budget.trials=0", "--set: budget.trials: needs a number of at least 1, found 0."),
        ("budget.trials=", "case.yaml: budget (line 5): needs at least one of trials, minutes"),
        ("budget.trails=3", "--set: budget.trails: unknown key. Did you mean trials?"),
        ("bugdet.trials=3", "--set: bugdet: unknown key. Did you mean budget?"),
        ("budget.trials.x=3", "--set: budget.trials.x: budget.trials is not a mapping."),
        ("objectives[3]={}", "--set: objectives[3]: objectives has no item 3."),
        (
            "budget.trials=[1",
            "--set: budget.trials: a bracket or quote that opens here never ends.",
        ),
        ("name=2026-01-01", "--set: name: 2026-01-01 reads as a date: quote it."),
        ("space=nope.yaml", "--set: space: nope.yaml: there is no such file."),
    ],
)
def test_faulty_overrides(tmp_path: Path, override: str, problem: str) -> None:
    found = problems(tmp_path, override)
    assert any(line.startswith(problem) for line in found), found


def shipped(folder: str) -> list[Path]:
    return sorted((ROOT / folder).glob("*.yaml"))


@pytest.mark.parametrize("path", shipped("search_spaces"), ids=lambda path: path.stem)
def test_every_shipped_space_is_valid(tmp_path: Path, path: Path) -> None:
    spec = load(tmp_path, space=str(path))
    assert spec.space.knobs
    assert spec.warnings == ()


@pytest.mark.parametrize(
    "name", ["quickstart", "scheduler", "memory", "parallelism", "quantization"]
)
def test_every_range_of_a_shipped_space_has_its_reason(name: str) -> None:
    path = ROOT / f"search_spaces/{name}.yaml"
    lines = path.read_text().splitlines()
    inside = lines[lines.index("knobs:") + 1 :]
    named = [i for i, line in enumerate(inside) if line.startswith("  ") and line[2].isalpha()]
    for i in named:
        if inside[i].strip() not in ("rules:", "fixed:"):
            assert inside[i - 1].strip().startswith("#"), inside[i]


def test_quickstart_fits_its_purpose() -> None:
    spec = load_study(ROOT / "studies/quickstart.yaml")
    workload = spec.workload()
    assert spec.warnings == ()
    assert len(spec.space.knobs) >= 5
    assert 100 <= len(workload.trace) <= 150
    assert 5 < workload.trace.span_s < 9
    assert workload.longest_tokens <= spec.base.args["max_model_len"]


def test_every_other_shipped_study_says_what_it_lacks() -> None:
    (problem,) = problems_of(ROOT / "studies/azure-conv-tiny.yaml")
    assert "trace.path" in problem
    assert "Get it from https://github.com/Azure/AzurePublicDataset" in problem
