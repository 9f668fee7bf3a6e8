"""Sizes of a run: quick, default and full, for a GPU and a CPU."""

from __future__ import annotations

import math
from dataclasses import replace

from llmviewer.calibrate.rows.routing import BALANCED, POWER_LAW
from llmviewer.core.errors import unknown
from llmviewer.core.frozen import frozen

Pairs = tuple[tuple[int, int], ...]

KIB, MIB, GIB = 2**10, 2**20, 2**30


@frozen
class RunSize:
    """Shapes to measure, and the time for them.

    budget_s: time of the run; shapes beyond it are left out and counted.
    samples, sample_s: minimum number of samples and target length of each.  settle_s: time that power-limited kernels
    run before the first sample.  power_s: time over which the power of each row is the mean; 0.0: as the driver
    reports it after the last sample.  max_flops: most FLOP of one call.
    expert_splits: (tensor-parallel, expert-parallel devices) of a layer of experts.  images: (batch, tokens of each).
    adapter_ranks: of low-rank adapters of the first model's layers.  packed, windows: kernels of decode attention over
    packed sequences, and their sliding windows beside none.  samplers: ways to choose the next token of `sequences`
    from `vocabularies`.  host_bytes: sizes of copies to and from the host, and of the largest its own memory and disk.
    launches: operators of next to no work whose launch is timed.
    prompts, block_prompts: (batch, tokens).  verified: (batch, draft tokens plus the last accepted one, cached tokens).
    caches, block_caches: (batch, tokens in the cache).
    blocks, whole_models: (model with these widths, layers).
    """

    budget_s: float = math.inf
    samples: int = 20
    sample_s: float = 1e-3
    warmup_s: float = 5e-3
    settle_s: float = 0.0
    power_s: float = 0.0
    max_flops: float = math.inf
    graphs: bool = True
    compiled: bool = True
    models: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    expert_models: tuple[str, ...] = ()
    expert_rows: tuple[int, ...] = ()
    expert_tokens: tuple[int, ...] = ()
    expert_splits: Pairs = ((1, 1),)
    expert_dtypes: tuple[str, ...] = ("bfloat16",)
    routings: tuple[str, ...] = (BALANCED, f"{POWER_LAW}1.2")
    encoder_models: tuple[str, ...] = ()
    images: Pairs = ()
    attention_models: tuple[str, ...] = ()
    latent_models: tuple[str, ...] = ()
    attention_dtypes: tuple[str, ...] = ("bfloat16",)
    backends: tuple[str, ...] = ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math")
    latent_backends: tuple[str, ...] = ("sdpa_cudnn", "sdpa_efficient", "sdpa_flash", "sdpa_math")
    prompts: Pairs = ()
    caches: Pairs = ()
    verified: tuple[tuple[int, int, int], ...] = ()
    packed: tuple[str, ...] = ()
    windows: tuple[int, ...] = ()
    prompt_windows: tuple[int, ...] = ()
    libraries: bool = False
    recurrent_models: tuple[str, ...] = ()
    recurrent_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 64, 256, 1024)
    adapter_ranks: tuple[int, ...] = ()
    samplers: tuple[str, ...] = ()
    vocabularies: tuple[int, ...] = ()
    sequences: tuple[int, ...] = ()
    host_bytes: tuple[int, ...] = ()
    launches: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    copy_bytes: tuple[int, ...] = ()
    allreduce_bytes: tuple[int, ...] = ()
    blocks: tuple[tuple[str, int], ...] = ()
    whole_models: tuple[tuple[str, int], ...] = ()
    block_dtypes: tuple[str, ...] = ("bfloat16",)
    block_prompts: Pairs = ()
    block_caches: Pairs = ()


def doubling(low: int, high: int) -> tuple[int, ...]:
    """Powers of two times `low`, up to `high`."""
    return tuple(low * 2**i for i in range(int(math.log2(high / low)) + 1))


def grid(batches: tuple[int, ...], lengths: tuple[int, ...], max_tokens: int) -> Pairs:
    """All pairs of batch size and length with at most `max_tokens` tokens in total."""
    return tuple((b, n) for b in batches for n in lengths if b * n <= max_tokens)


SAMPLERS = ("greedy", "sample", "top_k", "top_p")
LAUNCHES = ("add", "linear", "norm", "attention", "softmax", "argmax", "silu", "topk", "sort", "copy")
GPU = RunSize(
    budget_s=1200.0,
    settle_s=0.3,
    max_flops=2e13,
    models=("llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b", "qwen3-32b", "gemma-2-9b", "mistral-small-24b"),
    dtypes=(
        "bfloat16",
        "fp8",
        "fp8_rows",
        "fp8_block",
        "nvfp4",
        "mxfp8",
        "bfloat16_2of4",
        "fp8_2of4",
        "w4a16",
        "int8",
        "float16",
        "tf32",
        "float32",
    ),
    tokens=(1, 4, 16, 32, 64, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192),
    expert_models=("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite"),
    expert_rows=(8, 64, 512, 2048, 8192, 32768),
    expert_tokens=(1, 8, 64, 256, 1024, 8192, 32768),
    expert_splits=((1, 1), (4, 1), (1, 8)),
    expert_dtypes=("bfloat16", "fp8"),
    packed=("varlen", "varlen_paged"),
    windows=(1024, 4096),
    libraries=True,
    recurrent_models=("mamba-codestral-7b", "qwen3-next-80b-a3b"),
    adapter_ranks=(16, 64),
    samplers=SAMPLERS,
    vocabularies=(32000, 128256, 151936),
    sequences=(1, 8, 64, 256),
    host_bytes=tuple(64 * KIB * 8**i for i in range(6)),
    launches=LAUNCHES,
    encoder_models=("gemma-3-4b", "llama-4-scout"),
    images=grid((1, 4, 16), (256, 576, 1024, 2304, 4096, 9216, 16384), 32768),
    attention_models=("llama-2-7b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.2-1b", "qwen2.5-7b", "gemma-2-9b"),
    latent_models=("deepseek-v2-lite", "deepseek-v3"),
    prompts=grid((1, 4, 16), (128, 512, 1024, 2048, 4096, 8192, 16384), 32768),
    caches=grid((1, 4, 16, 64, 256), (128, 512, 2048, 8192, 32768, 131072), 1048576),
    widths=(2048, 4096, 8192, 14336),
    copy_bytes=doubling(16 * KIB, 2 * GIB),
    allreduce_bytes=doubling(4 * KIB, 512 * MIB),
    blocks=(("llama-3.1-8b", 1), ("llama-2-7b", 1), ("llama-3.1-70b", 1)),
    whole_models=(("llama-3.2-1b", 16),),
    block_prompts=grid((1, 8), (128, 512, 2048, 8192), 16384),
    block_caches=grid((1, 8, 64), (512, 2048, 8192), 131072),
)
CPU = RunSize(
    budget_s=300.0,
    sample_s=2e-3,
    warmup_s=10e-3,
    max_flops=5e10,
    graphs=False,
    compiled=False,
    models=("qwen3-0.6b", "qwen2.5-0.5b", "tinyllama-1.1b", "llama-3.2-1b"),
    dtypes=("float32", "bfloat16", "int8", "w4a16"),
    tokens=(1, 4, 16, 64, 256, 1024),
    expert_models=("olmoe-1b-7b",),
    expert_rows=(8, 64, 512),
    expert_tokens=(1, 8, 64, 256),
    expert_splits=((1, 1), (4, 1), (1, 8)),
    encoder_models=("gemma-3-4b", "llama-4-scout"),
    images=grid((1, 4), (64, 256, 576, 1024, 2304), 4096),
    attention_models=("qwen3-0.6b", "qwen2.5-0.5b", "tinyllama-1.1b", "gemma-2-2b"),
    latent_models=("deepseek-v2-lite",),
    attention_dtypes=("float32", "bfloat16"),
    backends=("sdpa_flash", "sdpa_math"),
    adapter_ranks=(16,),
    samplers=SAMPLERS,
    vocabularies=(32000,),
    sequences=(1, 8),
    host_bytes=(256 * MIB,),
    launches=LAUNCHES,
    latent_backends=("sdpa_math",),
    prompts=grid((1, 4), (64, 256, 1024, 2048), 4096),
    caches=grid((1, 4, 16), (256, 1024, 4096, 16384), 65536),
    widths=(1024, 2048, 5632),
    copy_bytes=doubling(16 * KIB, 256 * MIB),
    blocks=(("tinyllama-1.1b", 1), ("qwen3-0.6b", 1)),
    whole_models=(("tinyllama-1.1b", 2), ("tinyllama-1.1b", 8)),
    block_dtypes=("float32", "bfloat16"),
    block_prompts=grid((1, 4), (32, 128, 512), 512),
    block_caches=grid((1, 4), (256, 1024), 4096),
)
#: (kind of device, name of the size) -> shapes to measure.
SIZES: dict[tuple[str, str], RunSize] = {
    ("cuda", "quick"): replace(
        GPU,
        budget_s=270.0,
        max_flops=4e12,
        models=("llama-3.1-8b", "qwen2.5-7b"),
        dtypes=("bfloat16", "fp8", "fp8_rows", "fp8_block", "nvfp4", "w4a16", "int8", "tf32"),
        windows=(1024,),
        adapter_ranks=(16,),
        vocabularies=(128256,),
        tokens=(1, 16, 64, 128, 256, 512, 2048, 8192),
        expert_models=("qwen3-30b-a3b",),
        expert_rows=(8, 512, 8192),
        expert_tokens=(1, 64, 1024, 8192),
        images=grid((1, 8), (256, 576, 1024, 4096), 16384),
        attention_models=("llama-2-7b", "llama-3.1-8b", "llama-3.2-1b"),
        latent_models=("deepseek-v2-lite",),
        prompts=grid((1, 8), (128, 512, 2048, 8192), 16384),
        caches=grid((1, 16, 128), (128, 1024, 8192, 32768), 262144),
        widths=(4096, 14336),
        copy_bytes=tuple(16 * KIB * 4**i for i in range(9)),
        allreduce_bytes=tuple(4 * KIB * 4**i for i in range(9)),
        blocks=(("llama-3.1-8b", 1),),
        block_prompts=((1, 512), (1, 2048)),
        block_caches=((1, 2048), (16, 2048)),
    ),
    ("cuda", "default"): GPU,
    ("cuda", "full"): replace(
        GPU,
        budget_s=math.inf,
        max_flops=1e14,
        prompt_windows=GPU.windows,
        models=(*GPU.models, "qwen2.5-72b", "mixtral-8x7b", "phi-4", "gemma-2-27b", "llama-2-7b", "llama-2-13b"),
        tokens=(*GPU.tokens, 2, 8, 24, 48, 96, 320, 768, 1536, 3072, 16384),
        expert_models=(*GPU.expert_models, "deepseek-v3", "qwen3-235b-a22b"),
        expert_rows=doubling(8, 65536),
        expert_tokens=doubling(1, 65536),
        images=grid(doubling(1, 32), (64, 256, 576, 1024, 1536, 2304, 4096, 9216, 16384), 65536),
        attention_models=(*GPU.attention_models, "qwen3-32b", "gemma-2b", "mistral-nemo"),
        prompts=grid((1, 2, 4, 8, 16, 32), doubling(64, 32768), 65536),
        caches=grid(doubling(1, 256), doubling(128, 131072), 2097152),
        widths=(1024, *GPU.widths, 28672),
        whole_models=(*GPU.whole_models, ("llama-3.1-8b", 32)),
    ),
    ("cpu", "quick"): replace(
        CPU,
        budget_s=48.0,  # importing torch takes seconds
        samples=10,
        sample_s=1e-3,
        warmup_s=4e-3,
        max_flops=3e9,
        models=("qwen3-0.6b",),
        dtypes=("float32", "bfloat16", "int8", "w4a16"),
        tokens=(1, 4, 16, 64, 256),
        adapter_ranks=(),
        samplers=("greedy", "sample"),
        sequences=(1,),
        host_bytes=(),
        launches=(),
        expert_tokens=(1, 8, 64),
        expert_splits=((1, 8), (4, 8)),
        encoder_models=("gemma-3-4b",),
        images=((1, 64), (2, 64), (4, 64), (1, 128), (1, 256), (2, 256), (4, 256), (1, 576), (1, 1024)),
        attention_models=("qwen3-0.6b", "tinyllama-1.1b"),
        attention_dtypes=("float32",),
        backends=("sdpa_flash",),
        prompts=((1, 64), (1, 256), (4, 256), (1, 1024)),
        caches=((1, 256), (1, 1024), (4, 1024), (1, 4096), (4, 4096)),
        widths=(1024, 2048),
        copy_bytes=tuple(16 * KIB * 4**i for i in range(7)),
        blocks=(("qwen3-0.6b", 1),),
        whole_models=(("tinyllama-1.1b", 2),),
        block_dtypes=("float32",),
        block_prompts=((1, 16), (1, 64)),
        block_caches=((1, 256), (4, 256)),
    ),
    ("cpu", "default"): CPU,
    ("cpu", "full"): replace(
        CPU,
        budget_s=math.inf,
        compiled=True,
        max_flops=4e11,
        models=(*CPU.models, "llama-3.2-3b", "smollm3-3b", "qwen3-4b"),
        dtypes=(*CPU.dtypes, "float16", "fp8"),
        recurrent_models=GPU.recurrent_models,
        recurrent_batches=(1, 2, 3, 4, 6, 8, 12, 16),
        tokens=(*CPU.tokens, 2, 8, 32, 128, 512, 2048),
        prompts=grid((1, 2, 4, 8), doubling(32, 4096), 8192),
        caches=grid((1, 2, 4, 8, 16, 32), doubling(128, 32768), 131072),
    ),
}


def size_named(kind: str, name: str) -> RunSize:
    """RunSize named quick, default or full for a kind of device."""
    if (kind, name) not in SIZES:
        raise unknown("size", name, {size for _, size in SIZES})
    return SIZES[kind, name]
