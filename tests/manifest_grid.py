"""Configurations of which every target of a launch manifest is tried."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from llmviewer.planning.manifests import EMITTERS
from llmviewer.planning.manifests.commands import ENGINES

#: Options -> devices of two replicas (of one, with pools).
LAYOUTS: dict[str, tuple[dict[str, str], int]] = {
    "one device": ({}, 2),
    "tp 4": ({"tensor_parallel_size": "4"}, 8),
    "tp 2, pp 2": ({"tensor_parallel_size": "2", "pipeline_parallel_size": "2,microbatches=4"}, 8),
    "tp 8, pp 2: two computers": ({"tensor_parallel_size": "8", "pipeline_parallel_size": "2"}, 32),
    "dp 2": ({"data_parallel_size": "2", "tensor_parallel_size": "2"}, 8),
    "dp 12: more than a computer": ({"data_parallel_size": "12"}, 24),
    "tp 8, ep 8": ({"tensor_parallel_size": "8", "expert_parallel_size": "8"}, 16),
    "dp 8, ep 8": ({"data_parallel_size": "8", "expert_parallel_size": "8"}, 16),
    "dp 16, ep 16: two computers": ({"data_parallel_size": "16", "expert_parallel_size": "16"}, 32),
    "two pools": ({"pools": "prefill=2xtp2,decode=1xtp8"}, 12),
    "two pools over computers": ({"pools": "prefill=1xtp8+pp2,decode=2xdp16+ep16"}, 48),
    "mtp": ({"tensor_parallel_size": "8", "speculative": "mtp,tokens=2,acceptance=0.8"}, 16),
    "disaggregated": ({"batching": "disaggregated,prefill=2,decode=1", "tensor_parallel_size": "2"}, 6),
}
LIMITS = {
    "max_model_len": "8192",
    "max_num_seqs": "128",
    "max_num_batched_tokens": "4096",
    "dtype": "bf16",
    "enforce_eager": None,
    "kv_block_size": "32",
    "ttft": "p99:1s",
}
ONLY = {"trtllm": {"kv_cache_free_gpu_memory_fraction": "0.85"}}
FORMATS = ({}, {"quantization": "fp8", "kv_cache_dtype": "fp8"}, {"quantization": "w4a16"})


def configuration(options: dict[str, Any], devices: int, engine: str = "vllm", **more: Any) -> dict[str, Any]:
    replicas = 1 if "pools" in options or "batching" in options else 2
    base = {"model": "deepseek-v3", "hardware": "h200", "devices": devices, "replicas": replicas}
    return base | {"options": options | {"engine": engine}} | more


def grid() -> list[Any]:
    """Target, engine and configuration: every layout, plain, with formats of numbers, and with limits."""
    found = []
    for (name, (layout, devices)), engine in itertools.product(LAYOUTS.items(), ENGINES):
        limits = LIMITS | ONLY.get(engine, {"gpu_memory_utilization": "0.92"})
        wholes = [layout | one for one in FORMATS] + [layout | FORMATS[1] | limits]
        for options, target in itertools.product(wholes, EMITTERS):
            if target == engine or target in ("k8s", "dynamo") or (target, engine) == ("llm-d", "vllm"):
                found.append(
                    pytest.param(target, configuration(options, devices, engine), id=f"{target} {engine} {name}")
                )
    return found
