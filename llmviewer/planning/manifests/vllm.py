"""`vllm serve`: the flags of vLLM 0.19.0, its pools, and its processes on several computers."""

from __future__ import annotations

from llmviewer.core.errors import UserError
from llmviewer.planning.manifests import speculation
from llmviewer.planning.manifests.flags import Cluster, Expression, Launch, Tables
from llmviewer.planning.manifests.serving import Serving

PORT = 8000
HEALTH = "/health"
#: Images by the chip's maker, but for their version.  https://docs.vllm.ai/en/v0.19.0/getting_started/installation/gpu/
IMAGES = {"NVIDIA": "vllm/vllm-openai:v", "AMD": "vllm/vllm-openai-rocm:v"}
TABLES = Tables(
    engine="vllm",
    title="vLLM",
    version="0.19.0",
    scalars={
        "tensor": "--tensor-parallel-size",
        "pipeline": "--pipeline-parallel-size",
        "data": "--data-parallel-size",
        "dtype": "--dtype",
        "max_model_len": "--max-model-len",
        "max_num_seqs": "--max-num-seqs",
        "max_num_batched_tokens": "--max-num-batched-tokens",
        "gpu_memory_utilization": "--gpu-memory-utilization",
        "kv_block_size": "--block-size",
        "enforce_eager": "--enforce-eager",
        "mixed": "--enable-chunked-prefill",
    },
    methods={
        "fp8": ("--quantization", "fp8"),
        "nf4": ("--quantization", "bitsandbytes"),
        "gptq": ("--quantization", "gptq"),
        "awq": ("--quantization", "awq"),
        **dict.fromkeys(
            (
                *("16-bit", "fp8-block", "fbgemm-fp8", "int8", "int4", "w8a16", "w8a16-fp8", "w4a8-fp8"),
                *("mxfp4", "nvfp4", "gguf"),
            ),
            (),
        ),
    },
    caches={"fp8": "fp8", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "bf16": "bfloat16", "fp16": "float16"},
)
#: Pools hand over their KV caches through NIXL.  https://docs.vllm.ai/en/v0.19.0/features/nixl_connector_usage/
TRANSFER = ("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}')
IN_IMAGE = "the image must be built with INSTALL_KV_CONNECTORS=true: the published one has no NIXL"
SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_HOST"
RPC_PORT = 13345


def launch(serving: Serving) -> Launch:
    """The server process of one replica, on one computer.  Raises UserError for what vLLM cannot run."""
    if serving.max_num_batched_tokens == 0:
        raise UserError("vLLM needs a limit of tokens per step; --max-num-batched-tokens 0 has none")
    flags, notes = TABLES.quantized(serving)
    flags = TABLES.flags(serving, {"expert": 1}) + (["--enable-expert-parallel"] if serving.expert > 1 else []) + flags
    cache = TABLES.cache(serving)
    flags += ["--kv-cache-dtype", cache or "auto"]
    flags += speculation.vllm(serving.draft) if serving.draft else []
    if serving.role:
        flags += TRANSFER
    return Launch(program=("vllm", "serve", serving.model), flags=tuple(flags), notes=tuple(notes))


def listen(port: int = PORT) -> tuple[str, ...]:
    """The flags of the HTTP server."""
    return ("--host", "0.0.0.0", "--port", str(port))


def join(serving: Serving, cluster: Cluster, rank: int) -> tuple[str, ...]:
    """The flags of one of several computers.  rank: 0, or 1 for any other.  Raises UserError for an impossible layout.

    Source: https://docs.vllm.ai/en/v0.19.0/serving/parallelism_scaling/, .../serving/expert_parallel_deployment/
    """
    own = serving.per_node
    others = ("--headless",) if rank else ()
    if serving.data == 1:
        number = Expression(f"${cluster.rank}") if rank else "0"
        place = ("--nnodes", str(serving.nodes), "--node-rank", number, "--master-addr", cluster.head())
        return (*place, *others)
    inner = serving.tensor * serving.pipeline
    if own % inner:
        raise UserError(
            f"vLLM runs whole data-parallel ranks on a computer: {inner} devices do not divide {own}; "
            "choose tensor x pipeline sizes that do"
        )
    start = ("--data-parallel-start-rank", Expression(f"$(({cluster.rank} * {own // inner}))")) if rank else ()
    local = ("--data-parallel-size-local", str(own // inner), "--data-parallel-address", cluster.head())
    return (*local, "--data-parallel-rpc-port", str(RPC_PORT), *start, *others)
