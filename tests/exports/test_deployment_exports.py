from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tuner.config import EngineConfig
from tuner.exports import EXPORTERS, PROFILES, write
from tuner.exports.vllm_config import _same
from tuner.presets import Preset

ARGS = {
    "enable_prefix_caching": False,
    "hf_overrides": {"a": "it's $HOME $(NAME)"},
    "cudagraph_capture_sizes": [1, 2],
    "max_num_seqs": 8,
    "seed": -1,
    "tensor_parallel_size": 2,
}


def preset(model: str = "org/model", **provenance: Any) -> Preset:
    config = EngineConfig(model, ARGS, {"VLLM_X": "a $b"})
    return Preset("low-latency", config, 3, {"m": 1.0}, provenance=provenance)


def only(kind: str, one: Preset, profile: str = "local") -> str:
    [(_, text)] = EXPORTERS[kind](one, PROFILES[profile])
    return text


def test_the_shell_line_is_what_vllm_parses_to_the_same_values(parse_words: Any) -> None:
    script = only("shell", preset())
    words = shlex.split(script.replace("\\\n", " "), comments=True)
    assert words[:4] == ["exec", "env", "VLLM_X=a $b", "vllm"]
    parsed = parse_words(words[4:])
    assert parsed["model_tag"] == "org/model"
    assert all(_same(value, parsed[name]) for name, value in ARGS.items())


def test_the_shell_script_is_valid_shell(tmp_path: Path) -> None:
    [path] = write([preset()], tmp_path, kind="shell")
    subprocess.run(["sh", "-n", str(path)], check=True)


def test_compose_reserves_gpus_and_checks_health(parse_words: Any) -> None:
    text = only("compose", preset(versions={"vllm": "0.32.0"}, hardware={"gpus": ["H200"]}))
    service = yaml.safe_load(text)["services"]["vllm"]
    assert service["image"] == "vllm/vllm-openai:v0.32.0"
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["count"], device["capabilities"]) == (2, ["gpu"])
    assert service["healthcheck"]["start_period"] == "900s"
    assert service["environment"] == {"VLLM_X": "a $$b"}
    words = [word.replace("$$", "$") for word in service["command"]]
    assert parse_words(["serve", *words])["hf_overrides"] == ARGS["hf_overrides"]


def test_compose_of_a_cpu_preset_reserves_no_gpu_and_mounts_a_local_model() -> None:
    text = only("compose", preset("/models/tiny", hardware={"gpus": []}, start_s=8.0))
    service = yaml.safe_load(text)["services"]["vllm"]
    assert "deploy" not in service
    assert "cpu" in service["image"]
    assert service["volumes"] == ["/models/tiny:/models/tiny:ro"]
    assert service["healthcheck"]["start_period"] == "300s"


def test_kubernetes_has_probes_resources_and_shared_memory(parse_words: Any) -> None:
    deployment, service = yaml.safe_load_all(only("kubernetes", preset(start_s=70.0)))
    pod = deployment["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert container["startupProbe"]["failureThreshold"] * 10 == 350
    assert {v["name"] for v in pod["spec"]["volumes"]} == {"shm", "cache"}
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    words = [word.replace("$$(", "$(") for word in container["args"]]
    assert parse_words(["serve", *words])["hf_overrides"] == ARGS["hf_overrides"]


@pytest.mark.parametrize("kind", EXPORTERS)
def test_every_format_has_its_provenance_beside_it(kind: str, tmp_path: Path) -> None:
    [path] = write([preset(study="s")], tmp_path, kind=kind)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, "low-latency.json"])


def test_on_one_machine_compose_listens_to_itself_only() -> None:
    service = yaml.safe_load(only("compose", preset()))["services"]["vllm"]
    assert service["ports"] == ["127.0.0.1:8000:8000"]


def test_a_node_of_eight_gpus_gets_as_many_engines_as_fit_behind_one_address() -> None:
    """Two GPUs per engine: four of them, each on GPUs of its own."""
    document = yaml.safe_load(only("compose", preset(), "production"))
    services = dict(document["services"])
    front = services.pop("front")
    devices = [s["deploy"]["resources"]["reservations"]["devices"][0] for s in services.values()]
    assert [d["device_ids"] for d in devices] == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]
    assert not any("ports" in service for service in services.values())
    assert front["ports"] == ["8000:8000"]
    assert set(front["depends_on"]) == set(services)
    text = document["configs"]["front"]["content"]
    assert all(f"server {name}:8000;" in text for name in services)
    assert "proxy_buffering off" in text


def test_a_model_on_the_whole_node_gets_one_engine() -> None:
    config = EngineConfig("m", {"tensor_parallel_size": 8})
    one = Preset("balanced", config, 3, {})
    services = yaml.safe_load(only("compose", one, "production"))["services"]
    assert services["vllm"]["ports"] == ["8000:8000"]


def test_kubernetes_in_production_keeps_engines_up_and_says_how_to_scale() -> None:
    capacity = {"capacity.requests_per_s": 10.0}
    text = only("kubernetes", preset(start_s=70.0, measured=capacity), "production")
    deployment, service, budget, hint = yaml.safe_load_all(text)
    assert hint is None
    assert deployment["spec"]["replicas"] == 4
    update = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    assert deployment["spec"]["strategy"] == update
    labels = deployment["spec"]["selector"]["matchLabels"]
    assert budget["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    _, _, commented = text.partition("load grows:\n")
    scaled = yaml.safe_load("".join(line[2:] for line in commented.splitlines(keepends=True)))
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaled["spec"]["maxReplicaCount"] == 4
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "7"


def test_without_a_measured_capacity_the_queue_says_when_to_scale() -> None:
    text = only("kubernetes", preset(), "production")
    assert "vllm:num_requests_waiting" in text


def test_kserve_runs_the_measured_container(parse_words: Any) -> None:
    service = yaml.safe_load(only("kserve", preset(start_s=70.0), "production"))
    assert (service["apiVersion"], service["kind"]) == (
        "serving.kserve.io/v1beta1",
        "InferenceService",
    )
    predictor = service["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (4, 4)
    [container] = predictor["containers"]
    assert container["name"] == "kserve-container"
    assert container["image"].startswith("vllm/vllm-openai:")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in predictor["volumes"]}
    assert container["startupProbe"]["failureThreshold"] * 10 == 350
    words = [word.replace("$$(", "$(") for word in container["args"]]
    parsed = parse_words(["serve", *words])
    assert all(_same(value, parsed[name]) for name, value in ARGS.items())


#: Types of the chart's values.schema.json for what we write.
CHART = {
    "name": str, "repository": str, "tag": str, "modelURL": str, "replicaCount": int,
    "requestCPU": int, "requestMemory": str, "requestGPU": int, "shmSize": str, "env": list,
    "vllmConfig": dict, "keda": dict, "extraVolumes": list, "extraVolumeMounts": list,
}  # fmt: skip


def chart_words(model: dict[str, Any]) -> list[str]:
    """Return the command line that the chart's template makes of its values."""
    given = model["vllmConfig"]
    caching = "--enable-prefix-caching" if given["enablePrefixCaching"] else None
    words = [model["modelURL"], caching or "--no-enable-prefix-caching"]
    words += ["--tensor-parallel-size", str(given["tensorParallelSize"]), *given["extraArgs"]]
    return [word.replace("$$(", "$(") for word in words]


def test_the_helm_values_are_typed_as_the_chart_wants_and_give_the_same_engine(
    parse_words: Any,
) -> None:
    one = preset("/models/tiny", versions={"vllm": "0.32.0"}, hardware={"gpus": ["H200"]})
    chart = yaml.safe_load(only("production-stack", one, "production"))
    [model] = chart["servingEngineSpec"]["modelSpec"]
    assert {key: type(value) for key, value in model.items()} == CHART
    assert (model["repository"], model["tag"]) == ("vllm/vllm-openai", "v0.32.0")
    assert (model["replicaCount"], model["requestGPU"]) == (4, 2)
    assert model["env"] == [{"name": "VLLM_X", "value": "a $b"}]
    assert chart["servingEngineSpec"]["startupProbe"]["failureThreshold"] * 10 == 900
    parsed = parse_words(["serve", *chart_words(model)])
    assert all(_same(value, parsed[name]) for name, value in ARGS.items())


def test_the_chart_does_not_switch_off_what_the_preset_leaves_to_vllm() -> None:
    """Without the value the chart passes --no-enable-prefix-caching."""
    chart = yaml.safe_load(only("production-stack", Preset("b", EngineConfig("m"), 1, {})))
    [model] = chart["servingEngineSpec"]["modelSpec"]
    assert model["vllmConfig"]["enablePrefixCaching"] is True
    assert "extraArgs" in model["vllmConfig"]


# What `serve run` does with the file: Ray Serve's own schema, then the application's own.
_RAY = """
import json, sys, yaml
from ray.serve.schema import ServeDeploySchema
from ray.serve.llm import LLMServingArgs
document = yaml.safe_load(sys.stdin)
[application] = ServeDeploySchema.model_validate(document).applications
module, _, name = application.import_path.partition(":")
assert callable(getattr(__import__(module, fromlist=[name]), name))
[config] = LLMServingArgs.model_validate(application.args).llm_configs
kwargs = config.get_engine_config().get_initialization_kwargs()
print(json.dumps([kwargs, config.deployment_config, config.runtime_env]))
"""


@pytest.mark.ray
def test_ray_serve_s_own_classes_take_the_file_and_start_the_same_engine() -> None:
    pytest.importorskip("grpc_reflection", reason="pip install 'ray[serve]'")
    more = {"distributed_executor_backend": "mp", "data_parallel_size": 2}
    config = EngineConfig("org/model", {**ARGS, **more, "compilation_config.mode": 3}, {"A": "1"})
    text = only("ray-serve", Preset("balanced", config, 3, {}), "production")
    done = subprocess.run(
        [sys.executable, "-c", _RAY],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kwargs, deployment, environment = json.loads(done.stdout.splitlines()[-1])
    assert {name: kwargs[name] for name in ARGS} == ARGS
    assert kwargs["compilation_config"] == {"mode": 3}
    assert kwargs["model"] == "org/model"
    assert kwargs["distributed_executor_backend"] == "ray"
    # Eight GPUs, four per pair of copies: two engines fit, each of them two copies.
    assert deployment == {"num_replicas": 4}
    assert environment["env_vars"]["A"] == "1"
