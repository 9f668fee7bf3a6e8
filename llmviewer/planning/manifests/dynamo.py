"""A DynamoGraphDeployment of Dynamo 1.1.0: a frontend, and a worker service per pool."""

from __future__ import annotations

import json
from typing import Any

from llmviewer.core.errors import UserError
from llmviewer.planning.manifests import commands, kubernetes, trtllm, vllm
from llmviewer.planning.manifests.commands import ENGINES
from llmviewer.planning.manifests.flags import Launch
from llmviewer.planning.manifests.serving import Serving

VERSION = "1.1.0"
#: Images of the release, and the engine within.  https://docs.nvidia.com/dynamo/resources/support-matrix
IMAGES = {
    "vllm": "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.1.0",
    "sglang": "nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.1.0",
    "trtllm": "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.1.0",
}
INSIDE = {"vllm": "0.19.0", "sglang": "0.5.10.post1", "trtllm": "1.3.0rc11"}
#: Flags of `python3 -m dynamo.trtllm` for those of trtllm-serve.
OF_TRTLLM = {
    "--tp_size": "--tensor-parallel-size",
    "--pp_size": "--pipeline-parallel-size",
    "--ep_size": "--expert-parallel-size",
    "--max_seq_len": "--max-seq-len",
    "--max_batch_size": "--max-batch-size",
    "--max_num_tokens": "--max-num-tokens",
    "--kv_cache_free_gpu_memory_fraction": "--free-gpu-memory-fraction",
}


def emit(serving: Serving) -> str:
    """The graph of all pools as YAML.  Raises UserError for what Dynamo cannot run."""
    image = IMAGES[serving.engine]
    frontend = {"componentType": "frontend", "replicas": 1, "extraPodSpec": {"mainContainer": {"image": image}}}
    notes = [f"kubectl apply -f FILE, with the operator of Dynamo {VERSION}; needs the secret hf-token-secret"]
    services: dict[str, Any] = {"Frontend": frontend}
    for pool in serving.pools:
        launch = ENGINES[pool.engine].launch(pool)
        notes += commands.heading(pool, launch, INSIDE[pool.engine])
        services[pool.role or "worker"] = _service(pool, launch)
    if not serving.from_hub:
        notes.append("the model is a path: it must exist in the container, so mount its volume")
    graph = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": serving.label},
        "spec": {"backendFramework": serving.engine, "services": services},
    }
    return commands.documents([graph], notes)


def _service(pool: Serving, launch: Launch) -> dict[str, Any]:
    """The service of a pool: workers that serve no HTTP, and whose operator joins computers."""
    if pool.maker != "NVIDIA":
        raise UserError(f"the images of Dynamo {VERSION} are for chips of NVIDIA; {pool.hardware} is of {pool.maker}")
    program = ("python3", "-m", f"dynamo.{pool.engine}")
    arguments = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[pool.engine](pool, launch)
    main = {"image": IMAGES[pool.engine], "command": list(program), "args": kubernetes.literal(arguments)}
    service: dict[str, Any] = {"envFromSecret": "hf-token-secret", "componentType": "worker"}
    if pool.role:
        service["subComponentType"] = pool.role
    service["replicas"] = pool.replicas
    if pool.nodes > 1:
        service["multinode"] = {"nodeCount": pool.nodes}
    return service | {
        "resources": {"limits": {"gpu": str(pool.per_node)}},
        "extraPodSpec": {"mainContainer": main},
    }


def _vllm(pool: Serving, launch: Launch) -> list[str]:
    arguments = ["--model", pool.model, *launch.flags]
    if pool.role:
        arguments += ["--disaggregation-mode", pool.role]
    if pool.nodes > 1 and pool.data > 1:
        vllm.join(pool, kubernetes.CLUSTER, 0)  # raises for ranks that a computer does not hold whole
        local = pool.per_node // (pool.tensor * pool.pipeline)
        arguments += ["--data-parallel-hybrid-lb", "--data-parallel-size-local", str(local)]
    return arguments


def _sglang(pool: Serving, launch: Launch) -> list[str]:
    host = ["--host", "0.0.0.0"] if pool.role else []
    return ["--model-path", pool.model, *launch.flags, *host]


def _trtllm(pool: Serving, launch: Launch) -> list[str]:
    arguments = ["--model", pool.model]
    flags = [one for one in launch.flags if one not in ("--extra_llm_api_options", trtllm.FILE)]
    extra = trtllm.options(pool)
    if "--enable_chunked_prefill" in flags:
        flags.remove("--enable_chunked_prefill")
        extra["enable_chunked_prefill"] = True
    arguments += [OF_TRTLLM.get(one, one) for one in flags]
    if extra:
        arguments += ["--override-engine-args", json.dumps(extra)]
    return arguments + (["--disaggregation-mode", pool.role] if pool.role else [])
