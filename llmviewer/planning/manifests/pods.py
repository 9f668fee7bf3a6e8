"""Parts of pods that Kubernetes, LeaderWorkerSet and llm-d share: containers, devices, shared memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmviewer.core.errors import UserError
from llmviewer.planning.manifests import text, vllm
from llmviewer.planning.manifests.commands import ENGINES
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
            f"{engine.TABLES.title} {engine.TABLES.version} publishes no image for {serving.hardware} of "
            f"{serving.maker}; makers with one: {', '.join(engine.IMAGES)}"
        )
    return str(engine.IMAGES[serving.maker])


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
    return ["sh", "-c", *literal(["exec " + text.line(own)])]


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
