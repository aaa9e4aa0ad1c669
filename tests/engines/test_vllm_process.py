"""vLLM's surroundings: output goes to the log, the environment comes back, no process stays."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tuner.engines.vllm import base_env
from tuner.engines.vllm_env import choose_start_method, fit_threads
from tuner.engines.vllm_process import Descendants, environment_kept, output_to


def test_output_of_this_process_and_its_children_goes_to_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "deep" / "engine.log"
    handler = logging.StreamHandler(sys.stdout)
    logger = logging.getLogger("somewhere")
    logger.addHandler(handler)
    try:
        with output_to(log):
            print("printed")
            os.write(2, b"written\n")
            logger.warning("logged")
            subprocess.run(["echo", "child"], check=True)
        print("after")
    finally:
        logger.removeHandler(handler)
    assert sorted(log.read_text().split()) == ["child", "logged", "printed", "written"]
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("after\n", "")


def test_a_stream_that_a_library_kept_from_inside_still_works_outside(tmp_path: Path) -> None:
    with output_to(tmp_path / "a.log"):
        kept = sys.stderr
    kept.write("still open\n")
    kept.flush()


def test_the_environment_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("REMOVED", "1")
    with environment_kept():
        os.environ.update(KEPT="2", ADDED="3")
        del os.environ["REMOVED"]
    assert (os.environ["KEPT"], os.environ["REMOVED"]) == ("1", "1")
    assert "ADDED" not in os.environ


# A parent that leaves a child behind which ignores the polite signal.
_STUBBORN = """
import subprocess, sys
child = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True);"
    "time.sleep(600)"
)
with subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    print(process.pid, flush=True)
    import os; os._exit(0)
"""


def test_orphans_and_stubborn_processes_end_too_and_earlier_ones_stay() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as earlier:
        children = Descendants()
        with subprocess.Popen(
            [sys.executable, "-c", _STUBBORN], stdout=subprocess.PIPE, text=True
        ) as parent:
            assert parent.stdout is not None
            orphan = psutil.Process(int(parent.stdout.readline()))
            parent.wait()
        assert orphan in children.alive()
        children.end()
        assert not orphan.is_running()
        assert children.alive() == []
        assert earlier.poll() is None
        earlier.kill()


def test_the_environment_of_a_study_is_frozen_and_names_its_caches(tmp_path: Path) -> None:
    env = base_env(tmp_path, device="cpu", model=str(tmp_path))
    assert env["VLLM_CACHE_ROOT"].startswith(str(tmp_path))
    assert env["TRITON_CACHE_DIR"].startswith(str(tmp_path))
    assert env["HF_HUB_OFFLINE"] == "1"
    assert int(env["OMP_NUM_THREADS"]) >= 1
    gpu = base_env(tmp_path, device="cuda", model="org/model")
    assert not {"HF_HUB_OFFLINE", "OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE"} & set(gpu)
    assert "VLLM_PLUGINS" not in {*env, *gpu}


def test_a_smaller_machine_gets_fewer_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setenv("OMP_NUM_THREADS", str(cores))
    fit_threads()
    assert os.environ["OMP_NUM_THREADS"] == str(cores)
    monkeypatch.setenv("OMP_NUM_THREADS", str(cores + 1))
    fit_threads()
    assert 1 <= int(os.environ["OMP_NUM_THREADS"]) <= max(cores - 1, 1)


@pytest.mark.parametrize(
    ("wanted", "binding", "method"),
    [(None, None, "fork"), ("fork", None, "fork"), ("spawn", None, "spawn"), (None, "0", "spawn")],
)
def test_processes_are_forked_unless_asked_otherwise(
    wanted: str | None, binding: str | None, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # as vLLM leaves it on the CPU
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    if binding is not None:
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", binding)
    choose_start_method(wanted)
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == method
