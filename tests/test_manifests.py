"""Launch manifests name only what the engines and schemas of the named versions have, and their devices add up."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from llmviewer.core.errors import UserError
from llmviewer.planning import manifests
from llmviewer.planning.manifests import emit
from llmviewer.planning.manifests.commands import ENGINES
from llmviewer.planning.manifests.dynamo import VERSION
from llmviewer.planning.manifests.llm_d import CHART
from llmviewer.planning.manifests.serving import serving_of
from llmviewer.timing.engine import load
from tests.manifest_checks import check_core, check_flags, check_program, check_schema, commands, facts
from tests.manifest_grid import LAYOUTS, configuration, grid


def pods_of(target: str, text: str) -> int:
    """Check a manifest; the devices that its objects claim together."""
    return {"k8s": _objects, "dynamo": _graph, "llm-d": _values}[target](text)


def _claimed(pod: dict[str, Any]) -> int:
    limits = pod["containers"][0]["resources"]["limits"]
    assert list(limits) == ["nvidia.com/gpu"]
    return int(limits["nvidia.com/gpu"])


def _started(container: dict[str, Any]) -> None:
    words = [*container["command"], *container.get("args", [])]
    words = [word.replace("$$(", "$(") for word in words]  # what Kubernetes passes on
    if words[:2] == ["sh", "-c"]:
        for command in re.findall(r"exec (.*?)(?:; else|; fi|$)", words[2]):
            check_program(shlex.split(command))
    else:
        check_program(words)


def _objects(text: str) -> int:
    total = 0
    objects = list(yaml.safe_load_all(text))
    for one in objects:
        if one["kind"] == "LeaderWorkerSet":
            check_schema(one, facts("leaderworkerset")["schema"])
            group = one["spec"]["leaderWorkerTemplate"]
            leader, worker = (group[f"{role}Template"]["spec"] for role in ("leader", "worker"))
            total += one["spec"]["replicas"] * (_claimed(leader) + (group["size"] - 1) * _claimed(worker))
            for pod in (leader, worker):
                _started(pod["containers"][0])
        else:
            check_core(one)
        if one["kind"] == "Deployment":
            pod = one["spec"]["template"]["spec"]
            total += one["spec"]["replicas"] * _claimed(pod)
            _started(pod["containers"][0])
    assert {one["kind"] for one in objects} >= {"Service"}
    return total


def _graph(text: str) -> int:
    graph = yaml.safe_load(text)
    check_schema(graph, facts("dynamographdeployment")["schema"])
    total = 0
    for service in graph["spec"]["services"].values():
        if service["componentType"] == "frontend":
            continue
        nodes = service.get("multinode", {}).get("nodeCount", 1)
        total += service["replicas"] * nodes * int(service["resources"]["limits"]["gpu"])
        main = service["extraPodSpec"]["mainContainer"]
        backend = main["command"][2].removeprefix("dynamo.")
        own = facts("dynamo")[backend]
        check_flags(main["args"], [own] if backend == "trtllm" else [facts(backend), own])
    return total


def _values(text: str) -> int:
    values = yaml.safe_load(text)
    check_schema(values, facts("llm-d-modelservice")["schema"])
    total = 0
    for pool in (values["decode"], values["prefill"]):
        if not pool["create"]:
            continue
        container, sizes = pool["containers"][0], pool["parallelism"]
        total += pool["replicas"] * sizes["workers"] * _claimed(pool)
        if container["modelCommand"] == "custom":
            _started(container)
        else:
            check_flags(container["args"], [facts("vllm")])
        assert sizes["workers"] == 1 or values["multinode"]
        core = {key: container[key] for key in ("name", "image", "args", "env", "ports", "resources", "volumeMounts")}
        pod = {"containers": [core | container.get("extraConfig", {})], "volumes": pool["volumes"]}
        check_core({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod})
    return total


@pytest.fixture(autouse=True, scope="module")
def resolved_once() -> Iterator[None]:
    """Limits are those of a configuration, whatever the target: they are predicted once for each of the grid."""
    resolved, known = manifests._resolved, dict[str, Any]()

    def once(wanted: Any) -> Any:
        key = json.dumps(wanted, sort_keys=True, default=str)
        if key not in known:
            known[key] = resolved(wanted)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifests, "_resolved", once)
        yield


@pytest.mark.parametrize(("target", "wanted"), grid())
def test_a_manifest_is_valid_and_its_devices_add_up(target: str, wanted: dict[str, Any]) -> None:
    try:
        text = emit(target, wanted)
    except UserError as error:
        assert (target, wanted["options"]["engine"]) == ("k8s", "trtllm"), error
        assert "started through MPI" in str(error), error
        return
    serving = serving_of(wanted)
    assert serving.devices == wanted["devices"]
    if target in ENGINES:
        found = list(commands(text))
        assert len(found) == sum(1 if pool.nodes == 1 or target == "trtllm" else 2 for pool in serving.pools)
        assert [check_program(words) for words in found] == [["deepseek-ai/DeepSeek-V3"]] * len(found)
    else:
        assert pods_of(target, text) == wanted["devices"]


def test_every_target_but_one_runs_each_layout() -> None:
    """TensorRT-LLM on several computers needs MPI, which Dynamo's operator sets up and plain objects do not."""
    refused = set()
    for case in grid():
        target, wanted = case.values
        try:
            emit(target, wanted)
        except UserError:
            refused.add(str(case.id))
    assert {name.partition(" ")[2] for name in refused} == {
        "trtllm tp 8, pp 2: two computers",
        "trtllm dp 16, ep 16: two computers",
        "trtllm two pools over computers",
    }


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", ["--tensor-paralel-size", "2"]),
        ("vllm", ["--tp-size", "2"]),
        ("vllm", ["--kv-cache-dtype", "int8"]),
        ("vllm", ["--enforce-eager", "true"]),
        ("sglang", ["--max-num-seqs", "2"]),
        ("trtllm", ["--kv_cache_dtype", "fp8"]),
        ("trtllm", ["--tp_size", "two"]),
    ],
)
def test_a_planted_flag_or_value_is_found(engine: str, words: list[str]) -> None:
    with pytest.raises(AssertionError):
        check_flags(words, [facts(engine)])


def test_a_planted_field_is_found_in_every_object() -> None:
    wanted = configuration(LAYOUTS["tp 8, pp 2: two computers"][0], 32)
    group = yaml.safe_load_all(emit("k8s", wanted)).__next__()
    group["spec"]["leaderWorkerTemplate"]["workers"] = 1
    with pytest.raises(jsonschema.ValidationError, match="workers"):
        check_schema(group, facts("leaderworkerset")["schema"])
    del group["spec"]["leaderWorkerTemplate"]["workers"]
    group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["gpus"] = 8
    with pytest.raises(kubernetes_validate.ValidationError, match="gpus"):
        check_schema(group, facts("leaderworkerset")["schema"])
    graph = yaml.safe_load(emit("dynamo", wanted))
    graph["spec"]["services"]["worker"]["nodes"] = 2
    with pytest.raises(jsonschema.ValidationError, match="nodes"):
        check_schema(graph, facts("dynamographdeployment")["schema"])
    values = yaml.safe_load(emit("llm-d", wanted))
    values["decode"]["parallelism"]["pipeline"] = 2
    with pytest.raises(jsonschema.ValidationError, match="pipeline"):
        check_schema(values, facts("llm-d-modelservice")["schema"])


def test_versions_of_the_code_are_those_of_the_data() -> None:
    for name, engine in ENGINES.items():
        assert engine.TABLES.version == facts(name)["version"]
    assert facts("dynamo")["version"] == VERSION
    assert facts("llm-d-modelservice")["version"] == CHART
    for name in (
        "vllm",
        "sglang",
        "trtllm",
        "dynamo",
        "leaderworkerset",
        "dynamographdeployment",
        "llm-d-modelservice",
    ):
        assert facts(name)["licence"] == "Apache-2.0"
        assert facts(name).get("commit") or facts(name)["tags"]
        assert facts(name)["repository"].count("/") == 1
        assert facts(name)["paths"]


@pytest.mark.parametrize(
    ("asked", "version"),
    [("vllm", "0.21.0"), ("vllm==0.19", "0.19.0"), ("vllm==0.20.2", "0.20.2"), ("sglang", "0.5.9")],
)
def test_the_image_is_of_the_version_that_the_prediction_is_of(asked: str, version: str) -> None:
    wanted = {
        "model": "llama-3.1-8b", "hardware": "h100-sxm", "devices": 1, "replicas": 1, "options": {"engine": asked},
    }  # fmt: skip
    text = emit("k8s", wanted)
    assert re.search(r"image: \S+:v(\S+)", text)[1] == version  # type: ignore[index]
    assert f" {version}" in text.splitlines()[1]
    if asked == "vllm":
        assert load("vllm").known_version == "0.21"
