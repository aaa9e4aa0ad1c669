"""Engine argument names against those of the installed vLLM."""

from pathlib import Path

import pytest

from tests.study_case import load, write
from tuner.engines.vllm_check import Checker
from tuner.study_arguments import GONE, SHORT, argument_problems

NAMES = {
    "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "kv_cache_dtype",
    "tensor_parallel_size", "compilation_config", "load_format", "enable_log_requests",
}  # fmt: skip


def found(folder: Path, args: str, booleans: set[str] | None = None) -> list[str]:
    spec = load(folder, engine=f"{{kind: vllm, args: {args}}}")
    return [str(p).partition("/case.yaml: ")[2] for p in argument_problems(spec, NAMES, booleans)]


def test_known_names_pass(tmp_path: Path) -> None:
    assert found(tmp_path, "{load-format: dummy, compilation-config.mode: 3}") == []


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            "{max-num-batched-token: 8}",
            "engine.args.max-num-batched-token (line 2): is an abbreviation, which the engine "
            "refuses: write max_num_batched_tokens.",
        ),
        (
            "{max-num: 8}",
            "engine.args.max-num (line 2): is an abbreviation, which the engine refuses: "
            "write max_num_batched_tokens or max_num_seqs.",
        ),
        (
            "{lod-format: dummy}",
            "engine.args.lod-format (line 2): the installed vLLM has no argument lod_format. "
            "Did you mean load_format?",
        ),
        (
            "{disable-log-requests: true}",
            "engine.args.disable-log-requests (line 2): the installed vLLM has no "
            "disable_log_requests: leave it out, or write enable_log_requests: false.",
        ),
        (
            "{no-enable-prefix-caching: true}",
            "engine.args.no-enable-prefix-caching (line 2): write enable_prefix_caching: false.",
        ),
        (
            "{tp: 2}",
            "engine.args.tp (line 2): the engine wants the full name, tensor_parallel_size.",
        ),
        (
            "{port: 8000}",
            "engine.args.port (line 2): port is the API server's, not the engine's: leave it out.",
        ),
        (
            "{model: x}",
            "engine.args.model (line 2): the model goes in model:, not among the arguments.",
        ),
        (
            "{compilation-confg.mode: 3}",
            "engine.args.compilation-confg.mode (line 2): the installed vLLM has no argument "
            "compilation_confg. Did you mean compilation_config?",
        ),
    ],
)
def test_other_names_are_refused_with_the_way_out(tmp_path: Path, args: str, problem: str) -> None:
    assert found(tmp_path, args) == [problem]


def test_knobs_and_baselines_are_held_against_the_names_too(tmp_path: Path) -> None:
    write(tmp_path, "model: m\nport: 1\nmax-num-sqs: 3\n", "current.yaml")
    spec = load(
        tmp_path,
        space="{knobs: {max-num-sequences: {int: [1, 4]}}}",
        baselines="[{name: current, config: current.yaml}, {name: b, args: {kv-dtype: fp8}}]",
    )
    assert [str(p).replace(f"{tmp_path}/", "") for p in argument_problems(spec, NAMES)] == [
        "case.yaml: space.knobs.max-num-sequences (line 3): the installed vLLM has no argument "
        "max_num_sequences. Did you mean max_num_seqs?",
        "current.yaml: max-num-sqs (line 3): the installed vLLM has no argument max_num_sqs. "
        "Did you mean max_num_seqs?",
        "case.yaml: baselines[1].args.kv-dtype (line 6): the installed vLLM has no argument "
        "kv_dtype. Did you mean kv_cache_dtype?",
    ]


def test_a_boolean_for_a_text_argument_is_refused(tmp_path: Path) -> None:
    args = "{kv-cache-dtype: false, enable-prefix-caching: false}"
    assert found(tmp_path, args, {"enable_prefix_caching"}) == [
        "engine.args.kv-cache-dtype (line 2): takes no boolean, found false: "
        "quote it ('false', 'off') if it is meant as text."
    ]


def test_text_for_a_boolean_argument_is_refused(tmp_path: Path) -> None:
    assert found(tmp_path, "{enable-prefix-caching: 'off'}", {"enable_prefix_caching"}) == [
        "engine.args.enable-prefix-caching (line 2): needs true or false, found the text 'off'."
    ]


NESTED = {
    *NAMES, "speculative_config", "kv_transfer_config", "hf_overrides",
    "compilation_config.mode", "compilation_config.cudagraph_mode",
    "compilation_config.pass_config", "speculative_config.method",
    "speculative_config.num_speculative_tokens", "kv_transfer_config.kv_role",
}  # fmt: skip


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            "{compilation-config.cudagraph-mod: NONE}",
            "engine.args.compilation-config.cudagraph-mod (line 2): compilation_config has no "
            "cudagraph_mod. Did you mean cudagraph_mode?",
        ),
        (
            "{speculative-config: {method: ngram, num_spec_tokens: 2}}",
            "engine.args.speculative-config (line 2): speculative_config has no "
            "num_spec_tokens. Did you mean num_speculative_tokens?",
        ),
        (
            "{kv-transfer-config: {kv_rol: kv_both}}",
            "engine.args.kv-transfer-config (line 2): kv_transfer_config has no kv_rol. "
            "Did you mean kv_role?",
        ),
        (
            "{compilation-config.level: 3}",
            "engine.args.compilation-config.level (line 2): compilation_config has no level: "
            "use compilation_config.mode.",
        ),
    ],
)
def test_a_misspelt_field_of_a_nested_argument_is_refused(
    tmp_path: Path, args: str, problem: str
) -> None:
    spec = load(tmp_path, engine=f"{{kind: vllm, args: {args}}}")
    assert [str(p).partition("/case.yaml: ")[2] for p in argument_problems(spec, NESTED)] == [
        problem
    ]


def test_fields_that_exist_and_arguments_without_a_class_pass(tmp_path: Path) -> None:
    args = (
        "{compilation-config: {cudagraph-mode: NONE}, compilation-config.pass-config.fuse: true, "
        "hf-overrides: {anything: 1}}"
    )
    spec = load(tmp_path, engine=f"{{kind: vllm, args: {args}}}")
    assert argument_problems(spec, NESTED) == []


@pytest.mark.vllm
def test_the_tables_agree_with_the_installed_vllm() -> None:
    pytest.importorskip("vllm")
    with Checker() as checker:
        live = set(checker.arguments())
    assert set(GONE) & live == set(), "no table needed for what vLLM has"
    assert set(SHORT.values()) <= live
    for old, advice in GONE.items():
        words = [word.strip(".,;:") for word in advice.replace(": {", " ").split()]
        named = {word for word in words if "_" in word}
        assert named <= live | {"num_speculative_tokens"}, old
