"""What to do about each reason for which a trial ends without a result."""

from __future__ import annotations

REMEDIES = {
    "out_of_memory": "lower max_model_len or gpu_memory_utilization's rivals (weights by "
    "quantization, KV cache by kv_cache_dtype: fp8), or raise tensor_parallel_size",
    "invalid_arguments": "vLLM refuses this combination; narrow the space or add a rule",
    "unsupported_by_hardware": "this machine cannot run it; take the value out of the space",
    "model_too_long": "raise max_model_len, or cut the workload's longest requests "
    "(transforms: max_tokens)",
    "launch_timeout": "raise engine.deadlines.start_s, or look at the trial's engine.log for "
    "what it waits for",
    "engine_died": "look at the end of the trial's engine.log; a signal 9 is most often the "
    "kernel's out-of-memory killer",
    "stalled": "the engine took requests and made no token; look at the trial's engine.log",
    "deadline": "raise engine.deadlines.replay_s, or cut the workload",
    "port_taken": "another program has the port; end it or let the slot take another one",
    "worker_lost": "the Ray worker or its node went away; look at the node's memory",
    "gpu_busy": "another process holds GPU memory; end it (nvidia-smi names it) and run again",
    "too_many_errors": "the engine refuses this workload; the trial's requests.parquet says why",
    "client_late": "the client could not keep the schedule: leave it a core, or lower the rate",
    "too_few_gpus": "lower tensor_parallel_size or pipeline_parallel_size, or add GPUs",
    "no_result": "an objective had no value; see the trial's measurement.json",
    "interrupted": "the run was stopped; it is queued again",
    "unknown": "a new kind of failure: the whole text is in the trial's attributes; report it",
}


def remedy(reason: str) -> str:
    """Return one sentence on what to do about a reason."""
    return REMEDIES.get(reason, REMEDIES["unknown"])
