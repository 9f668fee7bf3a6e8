"""`trtllm-serve`: the flags of TensorRT-LLM 1.2 with its PyTorch backend, and the YAML of what has no flag."""

from __future__ import annotations

from typing import Any

import yaml

from llmviewer.core.errors import UserError
from llmviewer.planning.manifests import speculation
from llmviewer.planning.manifests.flags import DTYPES, Cluster, Launch, Tables
from llmviewer.planning.manifests.serving import Serving

PORT = 8000
HEALTH = "/health"
#: Images by the chip's maker.  https://catalog.ngc.nvidia.com/orgs/nvidia/teams/tensorrt-llm/containers/release
IMAGES = {"NVIDIA": "nvcr.io/nvidia/tensorrt-llm/release:"}
#: File of the options of the LLM API that trtllm-serve has no flag for.
FILE = "extra_llm_api_options.yaml"
TABLES = Tables(
    engine="trtllm",
    title="TensorRT-LLM",
    version="1.2.0",
    scalars={
        "tensor": "--tp_size",
        "pipeline": "--pp_size",
        "expert": "--ep_size",
        "max_model_len": "--max_seq_len",
        "max_num_seqs": "--max_batch_size",
        "max_num_batched_tokens": "--max_num_tokens",
        "kv_fraction": "--kv_cache_free_gpu_memory_fraction",
        "mixed": "--enable_chunked_prefill",
    },
    methods=dict.fromkeys(("16-bit", "fp8", "fp8-block", "int4", "w4a8-fp8", "mxfp4", "nvfp4"), ()),
    caches={"fp8": "fp8", "fp8_e4m3": "fp8"},
)
#: Fields of Serving that the YAML states instead of a flag.
IN_FILE: dict[str, Any] = {"data": 1, "dtype": "auto", "enforce_eager": False, "kv_block_size": None}


def launch(serving: Serving) -> Launch:
    """The server process of one replica, on one computer.  Raises UserError for what TensorRT-LLM cannot run."""
    if serving.maker != "NVIDIA":
        raise UserError(f"TensorRT-LLM runs on chips of NVIDIA; {serving.hardware} is of {serving.maker}")
    if serving.data > 1 and serving.tensor > 1:
        raise UserError(
            "TensorRT-LLM 1.2.0 shares experts among data-parallel ranks of one device each; "
            f"tensor {serving.tensor} x data {serving.data} has no flags: choose tensor 1"
        )
    if serving.max_num_batched_tokens == 0:
        raise UserError("TensorRT-LLM 1.2.0 needs a limit of tokens per step; --max-num-batched-tokens 0 has none")
    more, notes = TABLES.quantized(serving)
    changed = IN_FILE | {"tensor": serving.tensor * serving.data}
    extra = options(serving)
    files = {FILE: yaml.safe_dump(extra, sort_keys=False)} if extra else {}
    flags = [*TABLES.flags(serving, changed), *more, *(["--extra_llm_api_options", FILE] if extra else [])]
    return Launch(program=("trtllm-serve", serving.model), flags=tuple(flags), files=files, notes=tuple(notes))


def options(serving: Serving) -> dict[str, Any]:
    """The options of the LLM API that have no flag of trtllm-serve.

    Source: tensorrt_llm/llmapi/llm_args.py; of pools, examples/disaggregated of TensorRT-LLM 1.2.
    """
    found: dict[str, Any] = {}
    cache = TABLES.cache(serving)
    kv = ({"dtype": cache} if cache else {}) | (
        {"tokens_per_block": serving.kv_block_size} if serving.kv_block_size else {}
    )
    if serving.data > 1:
        found["enable_attention_dp"] = True
    if serving.dtype != "auto":
        found["dtype"] = DTYPES.get(serving.dtype, serving.dtype)
    if serving.enforce_eager:
        found["cuda_graph_config"] = None
    if kv:
        found["kv_cache_config"] = kv
    if serving.draft:
        found["speculative_config"] = speculation.trtllm(serving.draft)
    if serving.role:
        found["cache_transceiver_config"] = {"backend": "DEFAULT"}
    if serving.role == "prefill":
        found["disable_overlap_scheduler"] = True
    return found


def listen(port: int = PORT) -> tuple[str, ...]:
    """The flags of the HTTP server."""
    return ("--host", "0.0.0.0", "--port", str(port))


def join(serving: Serving, cluster: Cluster, rank: int) -> tuple[str, ...]:
    """Flags of one of several computers: none, its processes are started through MPI.  Raises UserError."""
    raise UserError(
        f"trtllm-serve on {serving.nodes} computers is started through MPI, which a plain manifest does not set up; "
        "choose sizes that fit one computer, or dynamo"
    )
