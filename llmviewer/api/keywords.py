"""Types of the keyword arguments of calls; written by `make docs` from the declared options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict


class RunOptions(TypedDict, total=False):
    """Options of a run, each with one value."""

    dtype: str
    latent_attention: str
    efficiency: str
    engine: str
    profile: str
    gpu_memory_utilization: float | None
    max_num_batched_tokens: int | str | None
    max_num_seqs: int | str | None
    max_model_len: int | str | None
    enforce_eager: bool
    ignore_fields: tuple[str, ...]
    model_set: str | float
    gpu_layers: str | float
    n_cpu_moe: str | float
    override_tensor: str | float
    cache_type_k: str
    cache_type_v: str
    logical_batch: int | str | None
    split_mode: str
    tensor_split: str | float
    main_gpu: int | str
    backend: str
    trace_model: bool
    weight_bits: str | float
    activation_bits: str | float
    kv_bits: str | float
    set: str | float | Mapping[str, str | float]
    power_limit: str | float
    expert_skew: str | float
    lora: str | float
    low_rank: str | float
    contextual_sparsity: str | float
    hot_neurons: str | float
    quantization: str | float
    kv_cache_dtype: str | float
    matformer: str | float
    prune: str | float
    kv_block_size: int
    kv_reserve: str | float
    prefix_cache: str | float
    kv_evict: str | float
    kv_cache_free_gpu_memory_fraction: str | float
    attention: str | float
    link: str | float
    network: str | float
    tensor_parallel_size: int
    sequence_parallel: bool
    data_parallel_size: int
    expert_parallel_size: int
    context_parallel_size: int
    pipeline_parallel_size: int
    spatial: bool
    fusion: str | float
    offload: str | float
    skip_layers: str | float
    early_exit: str | float
    speculative: str | float
    branches: str | float
    batching: str | float


class RunOptionLists(TypedDict, total=False):
    """Options of a run, each with one value or a list of values."""

    dtype: str | Sequence[str]
    latent_attention: str | Sequence[str]
    efficiency: str | Sequence[str]
    engine: str | Sequence[str]
    profile: str | Sequence[str]
    gpu_memory_utilization: float | Sequence[float] | None
    max_num_batched_tokens: int | str | Sequence[int | str] | None
    max_num_seqs: int | str | Sequence[int | str] | None
    max_model_len: int | str | Sequence[int | str] | None
    enforce_eager: bool | Sequence[bool]
    ignore_fields: tuple[str, ...]
    model_set: str | float | Sequence[str | float]
    gpu_layers: str | float | Sequence[str | float]
    n_cpu_moe: str | float | Sequence[str | float]
    override_tensor: str | float | Sequence[str | float]
    cache_type_k: str | Sequence[str]
    cache_type_v: str | Sequence[str]
    logical_batch: int | str | Sequence[int | str] | None
    split_mode: str | Sequence[str]
    tensor_split: str | float | Sequence[str | float]
    main_gpu: int | str | Sequence[int | str]
    backend: str | Sequence[str]
    trace_model: bool | Sequence[bool]
    weight_bits: str | float | Sequence[str | float]
    activation_bits: str | float | Sequence[str | float]
    kv_bits: str | float | Sequence[str | float]
    set: str | float | Mapping[str, str | float] | Sequence[str | float | Mapping[str, str | float]]
    power_limit: str | float | Sequence[str | float]
    expert_skew: str | float | Sequence[str | float]
    lora: str | float | Sequence[str | float]
    low_rank: str | float | Sequence[str | float]
    contextual_sparsity: str | float | Sequence[str | float]
    hot_neurons: str | float | Sequence[str | float]
    quantization: str | float | Sequence[str | float]
    kv_cache_dtype: str | float | Sequence[str | float]
    matformer: str | float | Sequence[str | float]
    prune: str | float | Sequence[str | float]
    kv_block_size: int | Sequence[int]
    kv_reserve: str | float | Sequence[str | float]
    prefix_cache: str | float | Sequence[str | float]
    kv_evict: str | float | Sequence[str | float]
    kv_cache_free_gpu_memory_fraction: str | float | Sequence[str | float]
    attention: str | float | Sequence[str | float]
    link: str | float | Sequence[str | float]
    network: str | float | Sequence[str | float]
    tensor_parallel_size: int | Sequence[int]
    sequence_parallel: bool | Sequence[bool]
    data_parallel_size: int | Sequence[int]
    expert_parallel_size: int | Sequence[int]
    context_parallel_size: int | Sequence[int]
    pipeline_parallel_size: int | Sequence[int]
    spatial: bool | Sequence[bool]
    fusion: str | float | Sequence[str | float]
    offload: str | float | Sequence[str | float]
    skip_layers: str | float | Sequence[str | float]
    early_exit: str | float | Sequence[str | float]
    speculative: str | float | Sequence[str | float]
    branches: str | float | Sequence[str | float]
    batching: str | float | Sequence[str | float]


class PricedOptions(RunOptions, total=False):
    """Options of a run, of its images, of money and of energy."""

    price: str | float | Sequence[str] | None
    prices: str | float | None
    price_kind: str | float | None
    owned: str | float | None
    carbon: float | None
    api_price: str | float | None
    images: str | None
    audio: str | float | None


class PricedOptionLists(RunOptionLists, total=False):
    """Options of a run with lists of values, of money and of energy."""

    price: str | float | Sequence[str] | None
    prices: str | float | None
    price_kind: str | float | None
    owned: str | float | None
    carbon: float | None
    api_price: str | float | None


class PricedSizedOptions(PricedOptions, total=False):
    """Options and sizes of a run, of money and of energy."""

    batch_size: int | str
    input_len: int | str
    output_len: int | str


class SizedRunOptions(RunOptions, total=False):
    """Options and sizes of a run."""

    batch_size: int | str
    input_len: int | str
    output_len: int | str


class SimulationOptions(RunOptions, total=False):
    """Options of a load and of a run."""

    request_rate: float | None
    concurrency: int | str | None
    trace: str | float | None
    burst: bool
    rate_curve: str | float | None
    arrivals: str | float
    input_len: str | float
    output_len: str | float
    lengths: str | float | None
    sessions: str | float | None
    images: str | None
    audio: str | float | None
    speed_up: float
    duration: str | float | None
    requests: int | str | None
    seed: int | str
    warm_up: str | float | None
    replications: int | str
    router: str | float | None
    schedule_policy: str
    replicas: int | str
    pools: str | float | None
    kv_tiers: str | float | None
    find_rate: bool
    ttft: str | float | None
    tpot: str | float | None
    e2e: str | float | None


class SizingOptions(RunOptionLists, total=False):
    """Options of a sizing, of its load, and of a run with the values to try."""

    max_usd_per_hour: float | None
    max_gpus: int | str | None
    objective: str
    confidence: float
    spare: int | str
    front: str
    autoscale: str | float | None
    start_up: str | float
    price: str | float | Sequence[str] | None
    prices: str | float | None
    price_kind: str | float | None
    owned: str | float | None
    carbon: float | None
    request_rate: float | None
    concurrency: int | str | None
    trace: str | float | None
    rate_curve: str | float | None
    arrivals: str | float
    input_len: str | float
    output_len: str | float
    lengths: str | float | None
    sessions: str | float | None
    images: str | None
    audio: str | float | None
    speed_up: float
    duration: str | float | None
    requests: int | str | None
    seed: int | str
    warm_up: str | float | None
    router: str | float | None
    schedule_policy: str
    kv_tiers: str | float | None
    ttft: str | float | None
    tpot: str | float | None
    e2e: str | float | None


class RequireOptions(RunOptions, total=False):
    """Targets, and options of a run."""

    tpot: str | float | None
    ttft: str | float | None
    e2e: str | float | None
    tokens_per_s: str | float | None


class TrainingOptions(RunOptions, total=False):
    """How a step is trained and spread over devices, and options of a run."""

    optimizer: str
    recompute: str | float
    zero: int | str
    micro_batch_size: int | str | None
    virtual_stages: int | str
    cpu_offload: str
    teacher: str | float | None
    second_stage: str | float | None
    tokens: float | None
    price: str | float | None


class DiagnosisOptions(RunOptions, total=False):
    """Facts of a pass that a file does not state, and options of a run."""

    batch_size: int | str | None
    input_len: int | str | None
    output_len: int | str | None
    stage: str
    passes: int | str | None
