"""Types of the keyword arguments of calls; written by `make docs` from `techniques/options.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class RunOptions(TypedDict, total=False):
    """Options of a run, each with one value."""

    dtype: str
    latent_attention: str
    efficiency: str
    engine: str
    profile: str
    gpu_memory_utilization: float
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    max_model_len: int | None
    enforce_eager: bool
    ignore_fields: tuple[str, ...]
    trace_model: bool
    set: str | int | float
    power_limit: str | int | float
    expert_skew: str | int | float
    lora: str | int | float
    low_rank: str | int | float
    contextual_sparsity: str | int | float
    hot_neurons: str | int | float
    quantization: str | int | float
    kv_cache_dtype: str | int | float
    matformer: str | int | float
    prune: str | int | float
    kv_block_size: str | int | float
    kv_reserve: str | int | float
    prefix_cache: str | int | float
    kv_evict: str | int | float
    kv_cache_free_gpu_memory_fraction: str | int | float
    attention: str | int | float
    link: str | int | float
    network: str | int | float
    tensor_parallel_size: str | int | float
    sequence_parallel: str | int | float
    data_parallel_size: str | int | float
    expert_parallel_size: str | int | float
    context_parallel_size: str | int | float
    pipeline_parallel_size: str | int | float
    spatial: str | int | float
    fusion: str | int | float
    offload: str | int | float
    skip_layers: str | int | float
    early_exit: str | int | float
    speculative: str | int | float
    branches: str | int | float
    batching: str | int | float


class RunOptionLists(TypedDict, total=False):
    """Options of a run, each with one value or a list of values."""

    dtype: str | Sequence[str]
    latent_attention: str | Sequence[str]
    efficiency: str | Sequence[str]
    engine: str | Sequence[str]
    profile: str | Sequence[str]
    gpu_memory_utilization: float | Sequence[float]
    max_num_batched_tokens: int | Sequence[int] | None
    max_num_seqs: int | Sequence[int] | None
    max_model_len: int | Sequence[int] | None
    enforce_eager: bool | Sequence[bool]
    ignore_fields: tuple[str, ...]
    trace_model: bool | Sequence[bool]
    set: str | int | float | Sequence[str | int | float]
    power_limit: str | int | float | Sequence[str | int | float]
    expert_skew: str | int | float | Sequence[str | int | float]
    lora: str | int | float | Sequence[str | int | float]
    low_rank: str | int | float | Sequence[str | int | float]
    contextual_sparsity: str | int | float | Sequence[str | int | float]
    hot_neurons: str | int | float | Sequence[str | int | float]
    quantization: str | int | float | Sequence[str | int | float]
    kv_cache_dtype: str | int | float | Sequence[str | int | float]
    matformer: str | int | float | Sequence[str | int | float]
    prune: str | int | float | Sequence[str | int | float]
    kv_block_size: str | int | float | Sequence[str | int | float]
    kv_reserve: str | int | float | Sequence[str | int | float]
    prefix_cache: str | int | float | Sequence[str | int | float]
    kv_evict: str | int | float | Sequence[str | int | float]
    kv_cache_free_gpu_memory_fraction: str | int | float | Sequence[str | int | float]
    attention: str | int | float | Sequence[str | int | float]
    link: str | int | float | Sequence[str | int | float]
    network: str | int | float | Sequence[str | int | float]
    tensor_parallel_size: str | int | float | Sequence[str | int | float]
    sequence_parallel: str | int | float | Sequence[str | int | float]
    data_parallel_size: str | int | float | Sequence[str | int | float]
    expert_parallel_size: str | int | float | Sequence[str | int | float]
    context_parallel_size: str | int | float | Sequence[str | int | float]
    pipeline_parallel_size: str | int | float | Sequence[str | int | float]
    spatial: str | int | float | Sequence[str | int | float]
    fusion: str | int | float | Sequence[str | int | float]
    offload: str | int | float | Sequence[str | int | float]
    skip_layers: str | int | float | Sequence[str | int | float]
    early_exit: str | int | float | Sequence[str | int | float]
    speculative: str | int | float | Sequence[str | int | float]
    branches: str | int | float | Sequence[str | int | float]
    batching: str | int | float | Sequence[str | int | float]
