"""What to do about each reason for which a trial ends without a result.

A remedy is a sentence by reason, and where the failures say numbers, what those numbers ask for.
Only failures of memory are answered with memory.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tuner.engines.evidence import STAGES, Shortage

REMEDIES = {
    "out_of_memory": "lower max_model_len, max_num_seqs or max_num_batched_tokens, shrink weights "
    "by quantization or the KV cache by kv_cache_dtype: fp8, or raise tensor_parallel_size",
    "invalid_arguments": "vLLM refuses this combination; narrow the space or add a rule",
    "unsupported_by_hardware": "this machine cannot run it; take the value out of the space",
    "model_too_long": "raise max_model_len, or cut the workload's longest requests "
    "(transforms: max_tokens)",
    "model_not_found": "check the model's name or folder, and that this machine may download it",
    "launch_timeout": "raise engine.deadlines.start_s, or look at the trial's engine.log for "
    "what it waits for",
    "engine_died": "look at the end of the trial's engine.log",
    "stalled": "the engine took requests and made no token; look at the trial's engine.log",
    "deadline": "raise engine.deadlines.replay_s, or cut the workload",
    "trial_deadline": "raise engine.deadlines.trial_s, or cut the workload or its measures",
    "kernel_compiled": "kernels are still compiled while requests run: raise warmup.requests, and "
    "keep the kernel cache between starts",
    "slo_out_of_reach": "loosen the slo's bounds, or start from a trace with less load",
    "port_taken": "another program has the port; end it or let the slot take another one",
    "worker_lost": "the Ray worker or its node went away; look at the node's memory",
    "gpu_busy": "another process holds GPU memory; end it (nvidia-smi names it) and run again",
    "slot_not_clean": "an engine of an earlier trial did not end; end its processes and run again",
    "too_many_errors": "the engine refuses this workload; the trial's requests.parquet says why",
    "client_late": "the client could not keep the schedule: leave it a core, or lower the rate",
    "client_lost": "one of the sending processes ended: leave it memory, or use fewer clients",
    "too_few_gpus": "lower tensor_parallel_size or pipeline_parallel_size, or add GPUs",
    "no_result": "an objective had no value; see the trial's measurement.json",
    "no_command": "install vLLM, or give engine.options.command",
    "no_token": "the server answers but makes no token; look at the trial's engine.log",
    "unreachable": "nothing answers at that address; check the URL and the served model",
    "not_reset": "requests outlived their replay; look at the trial's engine.log",
    "breaks_rule": "nothing to mend: a rule of the search space forbids it",
    "not_scored": "the engine gives no logprobs of prompts; leave accuracy out (prompts: 0)",
    "not_hot": "the engine does not change this while it lives; it is started anew instead",
    "not_applied": "a live change did not take; it is started anew instead",
    "cancelled": "it was stopped before it was done; run the study again to go on",
    "interrupted": "the run was stopped; it is queued again",
    "host_error": "a fault of the tuner itself: the whole text is in the trial's attributes; "
    "report it",
    "checker_died": "the process that checks configurations ended; run again, and report it",
    "checker_failed": "vLLM could not be asked; `tuner doctor` says what is wrong with it",
    "unknown": "a new kind of failure: the whole text is in the trial's attributes; report it",
}
_MEMORY = {
    "weights": "the weights alone do not fit: raise tensor_parallel_size, or shrink them by "
    "quantization",
    "activations": "lower max_num_batched_tokens and max_num_seqs, which size the profile run",
    "kv_cache": "raise tensor_parallel_size or gpu_memory_utilization, or shrink the weights by "
    "quantization: nothing is left for the KV cache",
    "graphs": "lower gpu_memory_utilization (graphs lie outside of it), or capture fewer sizes "
    "(compilation_config.cudagraph_capture_sizes)",
    "replay": "lower gpu_memory_utilization: too little is left for peaks under load",
    "device": "lower gpu_memory_utilization, or end what else uses the memory",
}


def remedy(reason: str, details: Sequence[str] = ()) -> str:
    """Return what to do about a reason, by the evidence in the failures' details where it says.

    Where several failures say a number, the one that helps all of them is named.
    """
    words = list(_WORDS[reason](details)) if reason in _WORDS else []
    return "; ".join(words) or REMEDIES.get(reason, REMEDIES["unknown"])


def _out_of_memory(details: Sequence[str]) -> Iterator[str]:
    found = [Shortage.read(detail) for detail in details]
    for stage, count in Counter(one.stage for one in found if one.stage).most_common():
        of_stage = [one for one in found if one.stage == stage]
        advice = ", or ".join(_by_numbers(of_stage)) or _MEMORY[stage]
        named = {"device": "before loading"} | STAGES
        yield f"{count} x {named[stage]}: {advice}" if len(found) > 1 else advice


def _by_numbers(found: Sequence[Shortage]) -> Iterator[str]:
    lengths = [one.fits_len for one in found if one.fits_len]
    if lengths:
        yield f"lower max_model_len to {min(lengths)}, which fits"
    yield from _at_most(found)
    needs = [
        (one.needed_gib, one.available_gib)
        for one in found
        if one.needed_gib is not None and one.available_gib is not None
    ]
    if needs:
        needed, available = max(needs, key=lambda need: need[0] - need[1])
        enough = "fits" if needed / 2 <= available else "is not enough by itself"
        yield f"raise gpu_memory_utilization by {needed - available:.2f} GiB's share of the device"
        yield (
            f"set kv_cache_dtype: fp8 (half of {needed:.2f} GiB {enough} in {available:.2f} GiB)"
        )


def _at_most(found: Sequence[Shortage]) -> Iterator[str]:
    free = [one for one in found if one.free_gib is not None and one.total_gib]
    if free:
        least = min(free, key=lambda one: (one.free_gib or 0) / (one.total_gib or 1))
        share = math.floor((least.free_gib or 0) / (least.total_gib or 1) * 100) / 100
        yield (
            f"set gpu_memory_utilization to at most {share:g} ({least.free_gib:g} of "
            f"{least.total_gib:g} GiB were free, {least.wanted_gib:g} wanted)"
        )


def _gpu_busy(details: Sequence[str]) -> Iterator[str]:
    """Who holds the memory comes first: a smaller share of a busy GPU measures the neighbour."""
    pids = sorted({int(pid) for text in details for pid in re.findall(r"\bPID (\d+)", text)})
    if pids:
        yield f"end the processes that hold GPU memory: {', '.join(map(str, pids))}"
    for words in _at_most([Shortage.read(text) for text in details]):
        end = "" if pids else "end what else uses the GPU (nvidia-smi names it), or "
        yield end + words


def _model_too_long(details: Sequence[str]) -> Iterator[str]:
    text = "\n".join(details)
    needed = [int(n) for n in re.findall(r"request needs (\d+) tokens", text)]
    if needed:
        yield f"raise max_model_len to {max(needed)}, or cut the workload's longest requests"
    derived = [int(n) for n in re.findall(r"derived max_model_len \(\w+=(\d+)", text)]
    if derived:
        yield f"lower max_model_len to {min(derived)}, the model's own limit"


def _engine_died(details: Sequence[str]) -> Iterator[str]:
    text = "\n".join(details)
    if "SIGKILL" in text:
        yield "SIGKILL is most often the kernel's out-of-memory killer: give the host more memory"
    if "SIGSEGV" in text or "SIGABRT" in text:
        yield "it crashed in native code: take the newest value out, or try another vLLM version"


def _launch_timeout(details: Sequence[str]) -> Iterator[str]:
    if details and all("was still at work" in text for text in details):
        yield "it was still at work: raise engine.deadlines.start_s"


_WORDS: dict[str, Callable[[Sequence[str]], Iterator[str]]] = {
    "out_of_memory": _out_of_memory,
    "gpu_busy": _gpu_busy,
    "model_too_long": _model_too_long,
    "engine_died": _engine_died,
    "launch_timeout": _launch_timeout,
}
