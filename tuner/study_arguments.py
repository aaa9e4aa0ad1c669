"""Names of engine arguments, held against those that the installed vLLM knows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tuner.errors import Problem
from tuner.study import StudySpec
from tuner.yaml_file import nearest

#: Arguments that vLLM had once -> what to do now.
GONE = {
    "disable_log_requests": "leave it out, or write enable_log_requests: false",
    "swap_space": "preempted requests are recomputed; kv_offloading_size moves KV cache to memory",
    "preemption_mode": "preempted requests are always recomputed; leave it out",
    "max_seq_len_to_capture": "use max_cudagraph_capture_size (in tokens)",
    "max_context_len_to_capture": "use max_cudagraph_capture_size (in tokens)",
    "cuda_graph_sizes": "use cudagraph_capture_sizes",
    "compilation_level": "use compilation_config.mode or optimization_level",
    "use_cuda_graph": "use enforce_eager: true to go without",
    "num_scheduler_steps": "async_scheduling overlaps scheduling with the model instead",
    "disable_async_output_proc": "use async_scheduling: false",
    "multi_step_stream_outputs": "use stream_interval",
    "scheduler_delay_factor": "leave it out; long_prefill_token_threshold holds long prompts back",
    "use_v2_block_manager": "it is the only one; leave it out",
    "num_lookahead_slots": "speculative_config sets it; leave it out",
    "max_num_partial_prefills": "use long_prefill_token_threshold",
    "max_long_partial_prefills": "use long_prefill_token_threshold",
    "speculative_model": "use speculative_config: {model: ..., num_speculative_tokens: ...}",
    "num_speculative_tokens": "use speculative_config.num_speculative_tokens",
    "ngram_prompt_lookup_max": "use speculative_config.prompt_lookup_max",
    "ngram_prompt_lookup_min": "use speculative_config.prompt_lookup_min",
    "speculative_disable_by_batch_size": "leave it out",
    "guided_decoding_backend": "use structured_outputs_config.backend",
    "worker_use_ray": "use distributed_executor_backend: ray",
    "rope_scaling": "use hf_overrides",
    "rope_theta": "use hf_overrides",
    "override_pooler_config": "use pooler_config",
    "override_neuron_config": "use additional_config",
    "task": "use runner and convert",
    "device": "the build of vLLM decides; leave it out",
    "tokenizer_pool_size": "leave it out",
    "disable_mm_preprocessor_cache": "use mm_processor_cache_gb: 0",
    "enable_lora_bias": "leave it out",
    "lora_extra_vocab_size": "leave it out",
    "long_lora_scaling_factors": "leave it out",
    "enable_prompt_adapter": "leave it out",
    "max_prompt_adapters": "leave it out",
    "quantization_param_path": "scales come with the checkpoint; leave it out",
    "calculate_kv_scales": "scales come with the checkpoint; leave it out",
    "num_redundant_experts": "use eplb_config.num_redundant_experts",
    "enable_reasoning": "use reasoning_parser",
    "compilation_config.level": "use compilation_config.mode",
    "compilation_config.use_cudagraph": "use compilation_config.cudagraph_mode",
    "compilation_config.full_cuda_graph": "use compilation_config.cudagraph_mode: FULL",
    "speculative_config.num_lookahead_slots": "use speculative_config.num_speculative_tokens",
}
#: Short options of the command line, which the engine does not know.
SHORT = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "dcp": "decode_context_parallel_size",
    "pcp": "prefill_context_parallel_size",
    "ep": "enable_expert_parallel",
    "q": "quantization",
    "sc": "speculative_config",
    "cc": "compilation_config",
    "ac": "attention_config",
}
#: Arguments of the API server in front of the engine.
_SERVER = {
    "host", "port", "uds", "api_key", "chat_template", "chat_template_content_format",
    "tool_call_parser", "enable_auto_tool_choice", "lora_modules", "middleware", "root_path",
    "response_role", "max_log_len", "uvicorn_log_level", "disable_frontend_multiprocessing",
}  # fmt: skip


def argument_problems(
    spec: StudySpec, names: Collection[str], booleans: Collection[str] | None = None
) -> list[Problem]:
    """Return a problem for each argument that an engine with these argument names refuses.

    ``names``: dotted as well, for the fields of nested arguments.
    ``booleans``: the names that take a boolean, where known; then a boolean for any other argument
    is a problem too (an unquoted ``off`` that some reader turned into false).
    """
    found: list[Problem] = []
    own = {name for name in names if "." not in name}
    for name, value in _written(spec):
        file, field = spec.written.get(name, ("", name))
        message = _fault(name.split(".")[0], own) or _inner_fault(name, value, names)
        if not message and booleans is not None and "." not in name:
            message = _boolean_fault(name, value, booleans)
        if message:
            found.append(Problem(file, field, message))
    return list(dict.fromkeys(found))


def _written(spec: StudySpec) -> Iterator[tuple[str, object]]:
    """Yield name and one value of every argument; each option of a choice."""
    yield from spec.space.fixed.items()
    for knob in spec.space.knobs:
        options = getattr(knob.domain, "options", (0,))
        yield from ((knob.name, option) for option in options)
    for baseline in spec.baselines:
        yield from baseline.arguments.items()


def _fault(name: str, names: Collection[str]) -> str:
    if name == "model":
        return "the model goes in model:, not among the arguments."
    return "" if name in names else _known_fault(name) or _unknown_fault(name, names)


def _known_fault(name: str) -> str:
    if name in SHORT:
        return f"the engine wants the full name, {SHORT[name]}."
    if name in GONE:
        return f"the installed vLLM has no {name}: {GONE[name]}."
    if name in _SERVER:
        return f"{name} is the API server's, not the engine's: leave it out."
    return ""


def _unknown_fault(name: str, names: Collection[str]) -> str:
    positive = name.removeprefix("no_")
    if positive != name and positive in names:
        return f"write {positive}: false."
    longer = sorted(other for other in names if other.startswith(name))
    if longer:
        return f"is an abbreviation, which the engine refuses: write {' or '.join(longer[:4])}."
    return f"the installed vLLM has no argument {name}.{nearest(name, names)}"


def _inner_fault(name: str, value: object, names: Collection[str]) -> str:
    """Say which field the nested argument's own class does not have; '' for one without a class."""
    head, _, rest = name.partition(".")
    inside = {other.partition(".")[2] for other in names if other.startswith(f"{head}.")}
    written = [rest] if rest else list(value) if isinstance(value, Mapping) else []
    fields = [str(key).partition(".")[0].replace("-", "_") for key in written]
    wrong = [field for field in fields if inside and field not in inside]
    return " ".join(_missing_field(head, field, inside) for field in wrong)


def _missing_field(head: str, field: str, inside: Collection[str]) -> str:
    gone = GONE.get(f"{head}.{field}")
    return f"{head} has no {field}" + (f": {gone}." if gone else f".{nearest(field, inside)}")


def _boolean_fault(name: str, value: object, booleans: Collection[str]) -> str:
    if isinstance(value, bool) and name not in booleans:
        word = str(value).lower()
        return f"takes no boolean, found {word}: quote it ('{word}', 'off') if it is meant as text."
    if name in booleans and isinstance(value, str) and value.lower() in ("on", "off", "yes", "no"):
        return f"needs true or false, found the text '{value}'."
    return ""
