"""Kinds of faults that people report from the field, each with the tests that hold it off.

The table is the index; the tests at its end are those that have no better place.
"""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

from tests.test_tune import OBJECTIVES, answering, good, loop
from tuner.config import EngineConfig
from tuner.dashboard import trial_note
from tuner.job import Job
from tuner.objectives import scores
from tuner.records import Faulted, Measured, Measurement, Outcome, TrialRecord
from tuner.report_failures import ran_otherwise

HERE = Path(__file__).parent

#: Kind -> what it is, and the tests of it (file: names).
CASES: dict[str, tuple[str, dict[str, list[str]]]] = {
    "C01": ("numbers in exponent form are text", {
        "test_study_yaml.py": ["test_numbers_may_be_written_in_any_common_form"],
    }),
    "C02": ("on and off are booleans", {
        "test_study_yaml.py": ["test_an_unquoted_switch_is_refused_with_both_ways_out"],
        "test_study_arguments.py": ["test_a_boolean_for_a_text_argument_is_refused"],
        "engines/test_vllm_check.py": ["test_what_can_never_start_is_refused_in_vllm_s_words"],
    }),
    "C04": ("a step does not divide its range", {
        "test_study_space.py": ["test_a_step_that_does_not_divide_the_range_shows_the_grid"],
        "test_knobs.py": ["test_a_step_that_does_not_divide_the_range_ends_below_its_top"],
    }),
    "C07": ("a space smaller than the budget", {
        "test_study_space.py": ["test_a_space_smaller_than_the_budget_warns"],
        "strategies/test_plain.py": ["test_no_point_twice_and_the_space_ends"],
        "strategies/test_strategies.py": ["test_a_small_space_ends"],
    }),
    "C10": ("an argument that is gone", {
        "test_study_arguments.py": [
            "test_other_names_are_refused_with_the_way_out",
            "test_the_tables_agree_with_the_installed_vllm",
        ],
    }),
    "C14": ("a wrong nested argument", {
        "engines/test_vllm_check.py": [
            "test_what_can_never_start_is_refused_in_vllm_s_words",
            "test_arguments_know_type_choices_default_and_flag",
        ],
    }),
    "C15": ("abbreviated and misspelt names", {
        "test_study_arguments.py": ["test_other_names_are_refused_with_the_way_out"],
        "exports/test_vllm_config.py": ["test_an_abbreviated_name_is_found_out"],
    }),
    "C18": ("a value that only the worker refuses", {
        "test_knowledge.py": ["test_what_one_study_learned_the_next_one_does_not_start"],
        "engines/test_vllm_engine.py": [
            "test_a_block_size_that_the_worker_cannot_use_is_rejected_with_its_cause",
        ],
        "strategies/test_strategies.py": [
            "test_no_point_twice_rules_kept_inactive_knobs_absent",
        ],
    }),
    "C20": ("the engine ran something else than asked", {
        "engines/test_vllm_check.py": ["test_silently_replaced_values_are_named"],
        "test_report.py": ["test_what_the_engine_changed_is_named"],
        "test_cases.py": ["test_an_engine_that_ran_something_else_is_flagged_on_its_trial"],
    }),
    "C23": ("lowering memory for ever", {
        "test_remedies.py": ["test_only_memory_failures_change_memory"],
        "engines/test_server_launch.py": [
            "test_an_end_is_seen_at_once_with_code_signal_and_log",
        ],
        "test_tune.py": ["test_a_study_in_which_nothing_works_ends_early_and_says_why"],
    }),
    "C25": ("a start longer than its budget", {
        "test_patience.py": [
            "test_a_start_that_shows_progress_may_take_longer_than_its_deadline",
            "test_a_silent_start_ends_at_its_deadline",
            "test_progress_is_no_excuse_for_ever",
        ],
        "engines/test_server_launch.py": [
            "test_never_ready_is_left_at_the_deadline_and_nothing_stays",
        ],
        "engines/test_vllm_engine.py": ["test_a_start_that_is_broken_off_leaves_no_process"],
    }),
    "C26": ("two engines, one port", {
        "engines/test_server_launch.py": [
            "test_servers_that_start_together_have_ports_of_their_own",
            "test_a_port_is_held_until_the_server_has_it_and_slots_do_not_share",
            "test_another_process_on_the_port_is_not_our_server",
            "test_ports_inside_of_engines_are_disjoint_by_slot_and_from_the_api_servers",
            "test_a_slot_tells_its_server_where_to_look_for_ports",
        ],
    }),
    "C30": ("healthy but dead inside", {
        "engines/test_server_engine.py": [
            "test_no_token_is_no_engine",
            "test_a_request_past_its_deadline_is_cancelled_at_the_server_too",
        ],
        "engines/test_server_launch.py": [
            "test_never_ready_is_left_at_the_deadline_and_nothing_stays",
        ],
        "test_replay.py": [
            "test_an_engine_that_makes_no_token_is_stalled",
            "test_a_replay_past_its_deadline_keeps_what_it_has",
        ],
        "pools/test_host_process.py": ["test_a_host_that_no_longer_answers_is_ended"],
    }),
    "C34": ("an engine that sees no device", {
        "pools/test_ray.py": ["test_an_engine_sees_its_own_devices_and_nothing_of_ray"],
        "pools/test_worker.py": ["test_the_hosts_environment_is_the_users_without_rays_part"],
    }),
    "C39": ("seconds or milliseconds", {
        "traces/test_formats.py": [
            "test_mooncake_means_milliseconds_and_timed_trace_seconds",
            "test_without_ids_the_unit_is_asked_for",
        ],
        "test_cli_trace.py": ["test_info_as_json"],
    }),
    "C40": ("many identical timestamps", {
        "traces/test_transforms.py": [
            "test_ties_are_spread_inside_the_step_in_their_order",
            "test_coarse_times_are_spread_by_default_and_kept_on_request",
        ],
        "traces/test_shared_files.py": ["test_coarse_time_is_seen_in_the_data"],
    }),
    "C41": ("rows without output tokens", {
        "traces/test_csv_policies.py": [
            "test_what_cannot_be_replayed_is_counted_by_reason",
            "test_no_output_can_be_replayed_as_prefill_and_is_noted",
        ],
        "traces/test_formats.py": ["test_missing_and_negative_values_in_json_are_counted"],
    }),
    "C43": ("hash ids that do not fit the length", {
        "traces/test_formats.py": [
            "test_ids_that_do_not_fit_the_length_are_refused",
            "test_block_size_can_be_given",
        ],
    }),
    "C53": ("a warm prefix cache between runs", {
        "engines/test_vllm_engine.py": ["test_a_repeated_prompt_is_cached_until_reset"],
        "engines/test_server_engine.py": ["test_prefixes_are_forgotten_by_endpoint_or_by_salt"],
        "traces/test_tokens.py": [
            "test_seed_trace_scope_and_request_each_change_the_tokens",
        ],
    }),
    "C55": ("a chunk is not a token", {
        "test_replay.py": ["test_several_tokens_a_chunk_are_tokens_not_chunks"],
        "engines/test_server_stream.py": ["test_a_chunk_of_k_tokens_gives_k_equal_times"],
    }),
    "C58": ("P99 of too few samples", {
        "test_metrics.py": ["test_p99_from_few_requests_warns_and_from_many_does_not"],
        "test_report.py": ["test_how_sure_it_is_comes_from_how_it_was_measured"],
        "test_confirm.py": ["test_one_repeat_confirms_nothing"],
    }),
    "C60": ("values that are not finite", {
        "test_cases.py": ["test_a_score_that_is_not_finite_is_no_result"],
        "test_pareto.py": ["test_a_score_that_is_not_finite_is_refused"],
        "strategies/test_plain.py": [
            "test_infeasible_is_pruned_with_a_violated_constraint_and_no_values",
        ],
    }),
    "C63": ("parallel asks return one point", {
        "strategies/test_plain.py": ["test_parallel_asks_differ"],
        "strategies/test_strategies.py": ["test_what_is_asked_at_once_differs"],
    }),
    "C71": ("--config=FILE is ignored", {
        "exports/test_vllm_config.py": [
            "test_the_header_shows_a_launch_line_of_two_words_and_the_environment",
        ],
        "engines/test_server_launch.py": ["test_a_launch_measures_the_file_that_a_preset_is"],
    }),
    "C77": ("a blank dashboard", {
        "test_dashboard.py": [
            "test_the_detail_api_shows_the_study_as_it_is",
            "test_the_study_s_page_is_not_blank",
        ],
    }),
}  # fmt: skip


def names_in(file: str) -> set[str]:
    """Return the names of a file's test functions."""
    tree = ast.parse((HERE / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("case", CASES)
def test_every_kind_has_its_tests(case: str) -> None:
    _, named = CASES[case]
    assert named
    for file, names in named.items():
        assert names
        assert set(names) <= names_in(file), f"{case}: {file} has not all of {names}"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_no_result(tmp_path: Path, value: float) -> None:
    """Optuna fails a NaN, and takes an infinity for the best of all."""

    def broken(job: Job) -> Outcome:
        if job.number % 2:
            return good(job)
        return Measured(Measurement({OBJECTIVES[0].metric: value, OBJECTIVES[1].metric: 1.0}))

    running = loop(tmp_path, answering(broken))
    running.run()
    records = running.store.records()
    spoilt = [record for record in records if record.number % 2 == 0]
    assert spoilt
    assert all(isinstance(r.outcome, Faulted) and r.outcome.reason == "no_result" for r in spoilt)
    assert {t.state.name for t in running.store.study.trials if t.number % 2 == 0} == {"FAIL"}
    assert scores(Measurement({o.metric: value for o in OBJECTIVES}), OBJECTIVES) is None


def test_an_engine_that_ran_something_else_is_flagged_on_its_trial() -> None:
    asked = {"max_num_seqs": 42, "compilation_config": {"mode": 3, "cudagraph_mode": "PIECEWISE"}}
    facts = {
        "effective": {"max_num_seqs": 40},
        "changed": {
            "compilation_config.mode": [3, 2],
            "compilation_config.cudagraph_mode": ["PIECEWISE", "NONE"],
            # Of another configuration that this engine was started with.
            "max_num_batched_tokens": [64, 32],
        },
    }
    measured = Measured(Measurement({}, facts=facts))
    record = TrialRecord(3, EngineConfig("m", asked), {}, measured, (1.0, 1.0))
    assert set(ran_otherwise(record)) == {
        ("max_num_seqs", 42, 40),
        ("compilation_config.mode", 3, 2),
        ("compilation_config.cudagraph_mode", "PIECEWISE", "NONE"),
    }
    note = trial_note(record)
    assert "max_num_seqs: asked 42, ran 40" in note
    same = Measured(Measurement({}, facts={"effective": {"max_num_seqs": 42}}))
    assert trial_note(TrialRecord(4, EngineConfig("m", asked), {}, same, (1.0, 1.0))) == ""
