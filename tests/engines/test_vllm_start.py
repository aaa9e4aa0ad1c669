"""What logs of real starts tell: lines as vLLM printed them, of several versions."""
# ruff: noqa: E501

from pathlib import Path

import pytest

from tuner.engines.vllm_start import broken_down, compilation, start_phases

ROOT = "/cache/vllm/torch_compile_cache"
KEY = "348fd1f53f1288e7b7d4f92e3b1446d86243296fd5981cd7dd3f01f5b1fe1c3f"

#: 0.24 on CUDA: everything was in the cache.
LOADED = f"""\
(Worker_TP0 pid=79) INFO 07-05 08:55:15 [default_loader.py:397] Loading weights took 27.99 seconds
(Worker_TP0 pid=79) INFO 07-05 08:55:18 [gpu_model_runner.py:5408] Model loading took 79.52 GiB memory and 197.764892 seconds
(Worker_TP0 pid=79) INFO 07-05 08:55:19 [backends.py:1089] Using cache directory: {ROOT}/d8d288a9e4/rank_0_0/backbone for vLLM's torch.compile
(Worker_TP0 pid=79) INFO 07-05 08:55:19 [backends.py:1148] Dynamo bytecode transform time: 1.26 s
(Worker_TP0 pid=79) INFO 07-05 08:55:20 [backends.py:292] Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 0.202 s
(Worker_TP0 pid=79) INFO 07-05 08:55:20 [decorators.py:311] Directly load AOT compilation from path {ROOT}/torch_aot_compile/{KEY}/rank_0_0/model
(Worker_TP0 pid=79) INFO 07-05 08:55:20 [monitor.py:53] torch.compile took 2.18 s in total
(Worker_TP0 pid=79) INFO 07-05 08:55:35 [monitor.py:81] Initial profiling/warmup run took 14.48 s
(Worker_TP0 pid=79) INFO 07-05 08:56:17 [gpu_model_runner.py:6745] Graph capturing finished in 3 secs, took 0.12 GiB
(EngineCore pid=58) INFO 07-05 08:56:17 [core.py:302] init engine (profile, create kv cache, warmup model) took 59.60 s (compilation: 2.91 s)
"""
#: 0.24 on CUDA: compiled.
COMPILED = f"""\
(EngineCore pid=79) INFO 07-30 07:07:11 [gpu_model_runner.py:5347] Model loading took 0.88 GiB memory and 7.012805 seconds
(EngineCore pid=79) INFO 07-30 07:07:16 [backends.py:1094] Using cache directory: {ROOT}/0b4005cc46/rank_0_0/backbone for vLLM's torch.compile
(EngineCore pid=79) INFO 07-30 07:07:16 [backends.py:1155] Dynamo bytecode transform time: 4.75 s
(EngineCore pid=79) INFO 07-30 07:07:27 [backends.py:393] Compiling a graph for compile range (1, 1024) takes 10.88 s
(EngineCore pid=79) INFO 07-30 07:07:29 [decorators.py:708] saved AOT compiled function to {ROOT}/torch_aot_compile/{KEY}/rank_0_0/model
(EngineCore pid=79) INFO 07-30 07:07:29 [monitor.py:53] torch.compile took 17.57 s in total
(EngineCore pid=79) INFO 07-30 07:10:19 [monitor.py:81] Initial profiling/warmup run took 169.73 s
"""
#: 0.15: the graphs alone came from the cache; older words for the whole.
GRAPHS = """\
[backends.py:988] Using cache directory: /root/.cache/vllm/torch_compile_cache/1776bb5122/rank_0_0/backbone for vLLM's torch.compile
[backends.py:1048] Dynamo bytecode transform time: 3.55 s
[backends.py:284] Directly load the compiled graph(s) for compile range (1, 2048) from the cache, took 1.963 s
[monitor.py:48] torch.compile takes 6.00 s in total
[core.py:259] init engine (profile, create kv cache, warmup model) took 107.64 seconds
"""
#: 0.32 on the CPU: what it compiled itself it cannot load.
CPU = f"""\
(Worker pid=4015) INFO 11-30 19:52:20 [base_loader.py:82] Initializing model took 0.295394 seconds
(Worker pid=4015) INFO 11-30 19:52:22 [cpu_model_runner.py:87] Warming up model for the compilation...
(Worker pid=4015) WARNING 11-30 19:52:23 [decorators.py:333] [backbone] Compiling model again due to a load failure from {ROOT}/torch_aot_compile/{KEY}/rank_0_0/model, reason: 'function' object has no attribute 'finalize_loading'
(Worker pid=4015) INFO 11-30 19:52:32 [decorators.py:743] [backbone] saved AOT compiled function to {ROOT}/torch_aot_compile/{KEY}/rank_0_0/model
(Worker pid=4015) INFO 11-30 19:52:32 [monitor.py:91] [backbone] Initial profiling/warmup run took 0.48 s
(Worker pid=4015) INFO 11-30 19:52:34 [cpu_model_runner.py:91] Warming up done.
(EngineCore pid=4007) INFO 11-30 19:52:43 [core.py:402] init engine (profile, create kv cache, warmup model) took 21.51 s
"""
EAGER = """\
(Worker pid=17335) INFO 11-30 21:34:19 [base_loader.py:82] Initializing model took 0.093549 seconds
(EngineCore pid=17326) INFO 11-30 21:34:21 [core.py:402] init engine (profile, create kv cache, warmup model) took 0.63 s
"""  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


def test_a_start_from_the_cache(log: Path) -> None:
    log.write_text(LOADED)
    assert start_phases(log) == {
        "weights_s": 197.764892,
        "compile_s": 2.18,
        "profile_s": 14.48,
        "graphs_s": 3.0,
        "init_s": 59.60,
        "warm_up_s": pytest.approx(59.60 - 2.18 - 14.48 - 3.0),
    }
    assert compilation(log) == {"how": "loaded", "key": KEY}


def test_a_start_that_compiles_and_does_not_end(log: Path) -> None:
    log.write_text(COMPILED)
    assert start_phases(log) == {"weights_s": 7.012805, "compile_s": 17.57, "profile_s": 169.73}
    assert compilation(log) == {"how": "compiled", "key": KEY}


def test_graphs_alone_from_the_cache(log: Path) -> None:
    log.write_text(GRAPHS)
    assert start_phases(log) == {"compile_s": 6.0, "init_s": 107.64, "warm_up_s": 101.64}
    assert compilation(log) == {"how": "graphs loaded", "key": "1776bb5122"}


def test_the_cpu_engine_gives_no_sentence_but_two_times(log: Path) -> None:
    log.write_text(CPU)
    assert start_phases(log) == {
        "model_s": 0.295394,
        "compile_s": 12.0 - 0.48,
        "profile_s": 0.48,
        "init_s": 21.51,
        "warm_up_s": 9.51,
    }
    assert compilation(log) == {
        "how": "compiled",
        "key": KEY,
        "why": "'function' object has no attribute 'finalize_loading'",
    }


def test_an_eager_start_compiles_nothing(log: Path) -> None:
    log.write_text(EAGER)
    assert start_phases(log) == {"model_s": 0.093549, "init_s": 0.63, "warm_up_s": 0.63}
    assert compilation(log) == {}


def test_an_earlier_start_in_the_same_log_is_left_out(log: Path) -> None:
    log.write_text(COMPILED + EAGER)
    assert compilation(log, len(COMPILED)) == {}
    assert "compile_s" not in start_phases(log, len(COMPILED))


def test_what_was_timed_around_the_log_completes_it(log: Path) -> None:
    log.write_text(EAGER)
    timed = {"import_s": 2.0, "engine_s": 1.5, "first_token_s": 0.1, "start_s": 3.7}
    whole = broken_down(start_phases(log), timed)
    assert whole["processes_s"] == pytest.approx(1.5 - 0.63)
    assert broken_down({}, timed) == timed  # a log that says nothing
