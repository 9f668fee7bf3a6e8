"""Values of the chart llm-d-modelservice v0.4.0, which starts vLLM in Deployments or LeaderWorkerSets."""

from __future__ import annotations

from typing import Any

from llmviewer.core.errors import UserError
from llmviewer.planning.manifests import commands, kubernetes, vllm
from llmviewer.planning.manifests.serving import Serving

CHART = "v0.4.0"
#: Port of the service, and the port of a decode server behind the routing proxy.
PORT, BEHIND_PROXY = 8000, 8200
ACCELERATORS = {"NVIDIA": "nvidia", "AMD": "amd"}


def emit(serving: Serving) -> str:
    """The values of all pools as YAML.  Raises UserError for what the chart cannot run."""
    if serving.engine != "vllm":
        raise UserError(f"llm-d-modelservice {CHART} starts vLLM; the configuration is one of engine {serving.engine}")
    if not serving.from_hub:
        raise UserError(f"llm-d-modelservice {CHART} fetches models from the Hub; give the Hub id instead of a path")
    if len({pool.maker for pool in serving.pools}) > 1:
        raise UserError("llm-d-modelservice has one type of accelerator for both pools; choose chips of one maker")
    several = any(pool.nodes > 1 for pool in serving.pools)
    values: dict[str, Any] = {
        "fullnameOverride": serving.label,
        "multinode": several,
        "modelArtifacts": {
            "name": serving.model,
            "uri": f"hf://{serving.model}",
            "authSecretName": "hf-token",
            "labels": {"llm-d.ai/inferenceServing": "true", "llm-d.ai/model": serving.label},
        },
        "accelerator": {"type": ACCELERATORS.get(serving.maker, "")},
        "routing": {"servicePort": PORT, "proxy": {"enabled": bool(serving.prefill), "targetPort": BEHIND_PROXY}},
        "decode": _pool(serving),
        "prefill": _pool(serving.prefill) if serving.prefill else {"create": False, "replicas": 0},
    }
    return commands.documents([values], _notes(serving))


def _notes(serving: Serving) -> list[str]:
    repository = "llm-d-modelservice --repo https://llm-d-incubation.github.io/llm-d-modelservice"
    notes = [f"helm install {serving.label} {repository} --version {CHART} -f FILE; needs the secret hf-token"]
    for pool in serving.pools:
        notes += commands.heading(pool, vllm.launch(pool))
    if serving.prefill:
        notes.append(vllm.IN_IMAGE)
    return [*notes, "the gateway and the InferencePool come with their own charts"]


def _pool(pool: Serving) -> dict[str, Any]:
    """The values of one pool."""
    local = max(pool.per_node // (pool.tensor * pool.pipeline), 1)
    parallelism = {"tensor": pool.tensor, "data": pool.data, "dataLocal": local, "workers": pool.nodes}
    return {
        "create": True,
        "replicas": pool.replicas,
        "parallelism": parallelism,
        "enableServiceLinks": False,
        "containers": [_container(pool)],
        "volumes": [kubernetes.SHARED_MEMORY],
    }


def _container(pool: Serving) -> dict[str, Any]:
    port = BEHIND_PROXY if pool.role == "decode" else PORT
    environment = [kubernetes.ADDRESS] if pool.role else []  # the chart adds the token
    return {
        "name": "vllm",
        "image": kubernetes.image(pool),
        **(_chart_command(pool) if pool.nodes == 1 else _own_command(pool, port)),
        "env": environment,
        "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
        "resources": kubernetes.devices(pool),
        "mountModelVolume": False,
        "volumeMounts": [kubernetes.MOUNT],
    }


def _chart_command(pool: Serving) -> dict[str, Any]:
    """The chart states the model, the port, and the tensor and data sizes itself."""
    flags = list(vllm.launch(pool).flags)
    for name in ("--tensor-parallel-size", "--data-parallel-size"):
        if name in flags:
            del flags[(at := flags.index(name)) : at + 2]
    probe = kubernetes.readiness(pool, BEHIND_PROXY if pool.role == "decode" else PORT)
    return {"modelCommand": "vllmServe", "args": kubernetes.literal(flags), "extraConfig": {"readinessProbe": probe}}


def _own_command(pool: Serving, port: int) -> dict[str, Any]:
    """Computers of a replica start alike, so a shell asks which one it is."""
    launch = vllm.launch(pool)
    flags = (*launch.flags, *vllm.listen(port), "--served-model-name", pool.model)
    first, other = (kubernetes.shell(pool, flags, launch.program, rank)[-1] for rank in (0, 1))
    script = f'if [ "${kubernetes.CLUSTER.rank}" = 0 ]; then {first}; else {other}; fi'
    return {"modelCommand": "custom", "command": ["sh", "-c"], "args": [script]}
