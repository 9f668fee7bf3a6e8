"""Kubernetes objects: pods, a Deployment per pool, a LeaderWorkerSet for replicas of several computers, a Service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmviewer.core.errors import UserError
from llmviewer.planning.manifests import commands, trtllm, vllm
from llmviewer.planning.manifests.commands import ENGINES, PROXIES
from llmviewer.planning.manifests.flags import Cluster
from llmviewer.planning.manifests.serving import Serving

#: Resource that a maker's device plugin offers.  https://github.com/NVIDIA/k8s-device-plugin,
#: https://github.com/ROCm/k8s-device-plugin
RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
#: Variables that LeaderWorkerSet sets in each pod.  https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/
CLUSTER = Cluster(address="LWS_LEADER_ADDRESS", rank="LWS_WORKER_INDEX")
TOKEN = {
    "name": "HF_TOKEN",
    "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN", "optional": True}},
}
ADDRESS = {"name": vllm.SIDE_CHANNEL, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
SHARED_MEMORY = {"name": "dshm", "emptyDir": {"medium": "Memory"}}
MOUNT = {"name": "dshm", "mountPath": "/dev/shm"}


def image(serving: Serving) -> str:
    """The engine's image for the chip's maker.  Raises UserError if none is published."""
    engine = ENGINES[serving.engine]
    if serving.maker not in engine.IMAGES:
        raise UserError(
            f"{engine.TABLES.title} {commands.version_of(serving)} publishes no image for {serving.hardware} of "
            f"{serving.maker}; makers with one: {', '.join(engine.IMAGES)}"
        )
    return f"{engine.IMAGES[serving.maker]}{commands.version_of(serving)}"


def resource(serving: Serving) -> str:
    """The resource name of the chip.  Raises UserError if none is known."""
    if serving.maker not in RESOURCES:
        raise UserError(f"no device plugin is known for {serving.hardware} of {serving.maker}: {', '.join(RESOURCES)}")
    return RESOURCES[serving.maker]


def devices(serving: Serving) -> dict[str, Any]:
    """The devices of one pod, as limits and requests."""
    count = {resource(serving): str(serving.per_node)}
    return {"limits": count, "requests": count}


def readiness(serving: Serving, port: int) -> dict[str, Any]:
    """The probe that says when a server takes requests; loading weights may take as long as it needs."""
    path = ENGINES[serving.engine].HEALTH
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": 10, "timeoutSeconds": 5}


def environment(serving: Serving) -> list[dict[str, Any]]:
    """Variables of a container: the Hub's token, and for pools of vLLM the pod's address."""
    return [TOKEN, *([ADDRESS] if serving.role and serving.engine == "vllm" else [])]


def literal(words: Sequence[str]) -> list[str]:
    """Words as Kubernetes passes them on: it would expand $(NAME) in a command and its arguments."""
    return [str(one).replace("$(", "$$(") for one in words]


def shell(serving: Serving, flags: Sequence[str], words: Sequence[str], rank: int) -> list[str]:
    """The command of one of the computers of a replica, run by a shell that knows LeaderWorkerSet's variables."""
    engine = ENGINES[serving.engine]
    own = (*words, *flags, *engine.join(serving, CLUSTER, rank))
    return ["sh", "-c", *literal(["exec " + commands.line(own)])]


def container(serving: Serving, command: Mapping[str, Any]) -> dict[str, Any]:
    """A container of the engine.  command: its `command`, and `args`."""
    return {
        "name": serving.engine,
        "image": image(serving),
        **command,
        "env": environment(serving),
        "resources": devices(serving),
        "volumeMounts": [MOUNT],
    }


FOLDER = "/etc/engine"


def emit(serving: Serving) -> str:
    """The objects of all pools as YAML documents.  Raises UserError for what cannot be run so."""
    objects: list[dict[str, Any]] = []
    notes = ["kubectl apply -f FILE; the token of the Hub is read from the secret hf-token, if there is one"]
    for pool in serving.pools:
        engine = ENGINES[pool.engine]
        notes += commands.heading(pool, engine.launch(pool))
        objects += _pool(pool)
    return commands.documents(objects, [*notes, *_needs(serving)])


def _needs(serving: Serving) -> list[str]:
    """Comments on what the cluster must have beside these objects."""
    found = []
    if any(pool.nodes > 1 for pool in serving.pools):
        found.append("LeaderWorkerSet must be installed: https://lws.sigs.k8s.io/docs/installation/")
    if not serving.from_hub:
        found.append("the model is a path: it must exist in the container, so mount its volume")
    if serving.prefill:
        found.append(f"not part of this file: {PROXIES[serving.engine]}")
        found += [vllm.IN_IMAGE] if serving.engine == "vllm" else []
    if len({pool.hardware for pool in serving.pools}) > 1:
        found.append("pools have different chips: add to each a nodeSelector with your cluster's label of the chip")
    return found


def name_of(serving: Serving) -> str:
    """The name of a pool's objects."""
    return f"{serving.label}-{serving.role}" if serving.role else serving.label


def _pool(serving: Serving) -> list[dict[str, Any]]:
    name = name_of(serving)
    launch = ENGINES[serving.engine].launch(serving)
    labels = {"app.kubernetes.io/name": name}
    objects: list[dict[str, Any]] = []
    if launch.files:
        objects.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(launch.files)}
        )
    objects.append(_one_computer(serving, labels) if serving.nodes == 1 else _several(serving, labels))
    selector = labels | ({"role": "leader"} if serving.nodes > 1 else {})
    port = ENGINES[serving.engine].PORT
    objects.append({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": selector, "ports": [{"name": "http", "port": port, "targetPort": port}]},
    })  # fmt: skip
    return objects


def _served(serving: Serving, command: dict[str, Any]) -> dict[str, Any]:
    """The container that answers requests."""
    port = ENGINES[serving.engine].PORT
    ports = [{"name": "http", "containerPort": port}]
    return container(serving, command) | {"ports": ports, "readinessProbe": readiness(serving, port)}


def _pod(container: dict[str, Any], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    """A pod without variables for services: one named vllm would set VLLM_PORT, which vLLM reads as its own."""
    return {"enableServiceLinks": False, "containers": [container], "volumes": volumes}


def _one_computer(serving: Serving, labels: dict[str, str]) -> dict[str, Any]:
    engine = ENGINES[serving.engine]
    launch = engine.launch(serving)
    flags = [f"{FOLDER}/{one}" if one == trtllm.FILE else one for one in (*launch.flags, *engine.listen())]
    command = {"command": literal(launch.program), "args": literal(flags)}
    served = _served(serving, command)
    volumes: list[dict[str, Any]] = [SHARED_MEMORY]
    if launch.files:
        served["volumeMounts"] = [MOUNT, {"name": "options", "mountPath": FOLDER}]
        volumes.append({"name": "options", "configMap": {"name": name_of(serving)}})
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name_of(serving), "labels": labels},
        "spec": {
            "replicas": serving.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod(served, volumes)},
        },
    }


def _several(serving: Serving, labels: dict[str, str]) -> dict[str, Any]:
    engine = ENGINES[serving.engine]
    launch = engine.launch(serving)
    flags = (*launch.flags, *engine.listen())
    first, other = ({"command": shell(serving, flags, launch.program, rank)} for rank in (0, 1))
    leader = _pod(_served(serving, first), [SHARED_MEMORY])
    worker = _pod(container(serving, other), [SHARED_MEMORY])
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name_of(serving), "labels": labels},
        "spec": {
            "replicas": serving.replicas,
            "leaderWorkerTemplate": {
                "size": serving.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {"metadata": {"labels": labels | {"role": "leader"}}, "spec": leader},
                "workerTemplate": {"metadata": {"labels": labels}, "spec": worker},
            },
        },
    }
