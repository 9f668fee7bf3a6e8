"""`python -m sglang.launch_server`: the flags of SGLang 0.5.9, its pools, and its processes on several computers."""

from __future__ import annotations

from llmviewer.planning.manifests import speculation
from llmviewer.planning.manifests.flags import Cluster, Expression, Launch, Tables
from llmviewer.planning.manifests.serving import Serving

PORT = 30000
HEALTH = "/health"
#: Images by the chip's maker.  https://docs.sglang.ai/get_started/install.html
IMAGES = {"NVIDIA": "lmsysorg/sglang:v"}
INIT_PORT = 20000
TABLES = Tables(
    engine="sglang",
    title="SGLang",
    version="0.5.9",
    scalars={
        "tensor": "--tp-size",
        "pipeline": "--pp-size",
        "data": "--dp-size",
        "expert": "--ep-size",
        "dtype": "--dtype",
        "max_model_len": "--context-length",
        "max_num_seqs": "--max-running-requests",
        "max_num_batched_tokens": "--chunked-prefill-size",
        "gpu_memory_utilization": "--mem-fraction-static",
        "kv_block_size": "--page-size",
        "enforce_eager": "--disable-cuda-graph",
        "mixed": "--enable-mixed-chunk",
    },
    methods={
        "fp8": ("--quantization", "fp8"),
        "nf4": ("--quantization", "bitsandbytes", "--load-format", "bitsandbytes"),
        "gptq": ("--quantization", "gptq"),
        "awq": ("--quantization", "awq"),
        **dict.fromkeys(
            ("16-bit", "fp8-block", "int8", "int4", "w8a16", "w4a8", "w4a8-fp8", "mxfp4", "nvfp4", "gguf"), ()
        ),
    },
    caches={"fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "bf16": "bf16"},
)


def launch(serving: Serving) -> Launch:
    """The server process of one replica, on one computer.  Raises UserError for what SGLang cannot run.

    With experts shared by data-parallel ranks, --tp-size counts all devices of a pipeline stage, and attention is
    data-parallel within them; --max-running-requests counts the requests of all ranks.
    """
    shared = serving.data > 1 and serving.expert > 1
    changed = {"tensor": serving.tensor * serving.data} if shared else {}
    if serving.max_num_seqs is not None:
        changed["max_num_seqs"] = serving.max_num_seqs * serving.data
    if serving.max_num_batched_tokens == 0:
        changed["max_num_batched_tokens"] = -1  # prompts are not cut
    flags, notes = TABLES.quantized(serving)
    flags = TABLES.flags(serving, changed) + (["--enable-dp-attention"] if shared else []) + flags
    cache = TABLES.cache(serving)
    flags += ["--kv-cache-dtype", cache or "auto"]
    flags += speculation.sglang(serving.draft) if serving.draft else []
    if serving.role:
        flags += ["--disaggregation-mode", serving.role, "--disaggregation-transfer-backend", "nixl"]
    if serving.gpu_memory_utilization is not None:
        notes.append("--mem-fraction-static counts weights and KV cache, not what passes need beside them")
    program = ("python3", "-m", "sglang.launch_server", "--model-path", serving.model)
    return Launch(program=program, flags=tuple(flags), notes=tuple(notes))


def listen(port: int = PORT) -> tuple[str, ...]:
    """The flags of the HTTP server."""
    return ("--host", "0.0.0.0", "--port", str(port))


def join(serving: Serving, cluster: Cluster, rank: int) -> tuple[str, ...]:
    """The flags of one of several computers.  rank: 0, or 1 for any other.  Raises UserError for uneven computers."""
    number = Expression(f"${cluster.rank}") if rank else "0"
    nodes = str(serving.group // serving.per_node)
    return ("--nnodes", nodes, "--node-rank", number, "--dist-init-addr", cluster.head(INIT_PORT))
