"""Kubernetes objects: a Deployment per pool, a LeaderWorkerSet where a replica takes several computers, a Service."""

from __future__ import annotations

from typing import Any

from llmviewer.planning.manifests import pods, text, trtllm, vllm
from llmviewer.planning.manifests.commands import ENGINES, PROXIES
from llmviewer.planning.manifests.serving import Serving

FOLDER = "/etc/engine"


def emit(serving: Serving) -> str:
    """The objects of all pools as YAML documents.  Raises UserError for what cannot be run so."""
    objects: list[dict[str, Any]] = []
    notes = ["kubectl apply -f FILE; the token of the Hub is read from the secret hf-token, if there is one"]
    for pool in serving.pools:
        engine = ENGINES[pool.engine]
        notes += text.heading(pool, engine.launch(pool), f"{engine.TABLES.title} {engine.TABLES.version}")
        objects += _pool(pool)
    return text.documents(objects, [*notes, *_needs(serving)])


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
    return pods.container(serving, command) | {"ports": ports, "readinessProbe": pods.readiness(serving, port)}


def _pod(container: dict[str, Any], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    """A pod without variables for services: one named vllm would set VLLM_PORT, which vLLM reads as its own."""
    return {"enableServiceLinks": False, "containers": [container], "volumes": volumes}


def _one_computer(serving: Serving, labels: dict[str, str]) -> dict[str, Any]:
    engine = ENGINES[serving.engine]
    launch = engine.launch(serving)
    flags = [f"{FOLDER}/{one}" if one == trtllm.FILE else one for one in (*launch.flags, *engine.listen())]
    command = {"command": pods.literal(launch.program), "args": pods.literal(flags)}
    served = _served(serving, command)
    volumes: list[dict[str, Any]] = [pods.SHARED_MEMORY]
    if launch.files:
        served["volumeMounts"] = [pods.MOUNT, {"name": "options", "mountPath": FOLDER}]
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
    first, other = ({"command": pods.shell(serving, flags, launch.program, rank)} for rank in (0, 1))
    leader = _pod(_served(serving, first), [pods.SHARED_MEMORY])
    worker = _pod(pods.container(serving, other), [pods.SHARED_MEMORY])
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
