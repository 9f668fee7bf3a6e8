"""Allocation and contents of the KV cache: pages, reservation, budget; number format, cached prefixes."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.core.ir import as_built
from llmviewer.language.grammar import Flag, Number
from llmviewer.techniques.layer_settings import by_layer, layer_settings
from llmviewer.techniques.quantization.grammar import parse_cache_scheme
from llmviewer.techniques.quantization.quantize import quantize
from llmviewer.techniques.technique import (
    Change,
    Technique,
    Whole,
    add_pass,
    change_kv_cache,
    technique,
    unchanged,
)


@technique(
    "kv_block_size",
    kind="kv cache",
    formula="ceil(tokens / block) block, mean waste (block - 1) / 2 tokens a sequence; a window of w tokens at most "
    "ceil((w - 1) / block) + 1 pages; block tables not counted",
    source="PagedAttention (vLLM) arXiv 2309.06180, section 4.2",
    example="llama-2-7b --hardware a100 --input-len 500 --kv-block-size 16",
)
def kv_block_size(tokens: Annotated[float, Whole("tokens of a page; 1: no pages", 1, 65536)]) -> Change:
    """Allocates the KV cache in whole pages of tokens (PagedAttention); part of the last page stays empty.

    On average (block - 1) / 2 tokens of the last page are empty.  A window may begin and end inside pages and uses up
    to one page more.  Recurrent state has no pages; block tables (4 bytes per page) are not counted.  Attention reads
    tokens, not pages.
    """
    return change_kv_cache(f"paged({tokens:g})", block_size=tokens) if tokens > 1 else unchanged


#: Names of reservations that depend on the model or the request -> fields of KvCache.
SIZES = {"max": {"reserve": np.inf}, "pow2": {"growth": 2.0}}


@technique(
    "kv_reserve",
    kind="kv cache",
    formula="max(context, reserved) tokens a sequence, or 2^ceil(log2 context), a windowed layer at most its window; "
    "divided by 1 - external; the rest is waste",
    source="FasterTransformer, Orca (Max) and Orca (Pow2) as arXiv 2309.06180 describes them, sections 3 and 6.1; its "
    "figure 2 measures 8.9 % external fragmentation for Orca (Max), 41.6 % for Orca (Pow2)",
    example="llama-2-7b --hardware a100 --input-len 500 --kv-reserve max",
)
def kv_reserve(
    tokens: Annotated[
        float | str,
        Whole(
            "tokens reserved for every sequence; max: the model's longest context; pow2: the next power of two",
            high=1e8,
            words=tuple(SIZES),
        ),
    ],
    *,
    external: Annotated[
        float | None,
        Number("share of the cache's memory lost between reservations (external fragmentation)", 0.0, 0.99, unset="0"),
    ] = None,
) -> Change:
    """Reserves contiguous KV cache for the longest context of a sequence when the sequence starts.

    Every sequence has max(context, reserved) tokens in one piece.  external: share of the cache's memory that lies
    between such pieces and is too short for another one; pages have no such gaps.
    """
    if not tokens:
        return unchanged
    gaps = "" if external is None else f", external={external:g}"
    if isinstance(tokens, str):
        return change_kv_cache(f"reserved({tokens}{gaps})", fragmented=external or 0.0, **SIZES[tokens])
    return change_kv_cache(f"reserved({tokens:,.0f}{gaps})", reserve=tokens, fragmented=external or 0.0)


@technique(
    "kv_cache_free_gpu_memory_fraction",
    kind="kv cache",
    formula="cache <= fraction (capacity - weights - activations - framework); vLLM: cache <= utilization capacity - "
    "weights - activations - framework",
    source="TensorRT-LLM, https://nvidia.github.io/TensorRT-LLM/reference/memory.html",
    example="llama-2-7b --hardware a100 --kv-cache-free-gpu-memory-fraction 0.9",
)
def kv_cache_free_gpu_memory_fraction(
    fraction: Annotated[float, Number("fraction of the free memory", 1e-6, 1.0)],
) -> Change:
    """Limits the KV cache to a fraction of the free memory, instead of all tensors to one of the whole memory.

    Free is what weights, activations and framework memory leave.  This replaces vLLM's rule (--gpu-memory-utilization),
    which limits all tensors to a fraction of the whole capacity.
    """
    return lambda system: replace(system, cache_fraction=fraction).listing(f"kv_budget({fraction:g} of free)")


@technique(
    "prefix_cache",
    kind="kv cache",
    formula="cached = min(floor(rate S), S - 1) in whole pages, new = S - cached; pairs new cached + "
    "new (new + 1) / 2; shared: cache of batch (context - cached) + cached tokens; cascade: as many keys are read, and "
    "2 (d_v + 2) fp32 per query and head are written and merged",
    source="vLLM automatic prefix caching, https://docs.vllm.ai/en/latest/design/prefix_caching/; RadixAttention "
    "arXiv 2312.07104; cascade: https://flashinfer.ai/2024/02/02/cascade-inference.html, Hydragen arXiv 2402.05099",
    example="llama-2-7b --hardware a100 --input-len 2048 --prefix-cache 0.5",
)
def prefix_cache(
    hit_rate: Annotated[float, Number("share of every prompt that is in the cache", 0.0, 1.0)],
    *,
    shared: Annotated[
        bool, Flag("without a value: the prefix is the same for the whole batch and stored once")
    ] = False,
    cascade: Annotated[
        bool, Flag("without a value: it is stored once, and read once by a kernel for the queries of all sequences")
    ] = False,
) -> Change:
    """Prefills only the prompt tokens that are not in the KV cache; a common prefix can be stored once.

    The attention of those tokens also reads the cached keys and values.  floor(rate S) of S prompt tokens are cached,
    in whole pages, and never the last one because its logits are needed.  Recurrent layers find the state at the end of
    the prefix.  `shared`: each sequence still reads the prefix.  Otherwise every sequence stores its own.
    """
    if not hit_rate:
        return unchanged
    word = "cascade" if cascade else "shared" if shared else ""
    name = f"prefix_cache({hit_rate:g}{f', {word}' if word else ''})"
    cached = change_kv_cache(name, hit_rate=hit_rate, shared=bool(word), cascade=cascade)

    def change(system: System) -> System:
        if word and system.kv_cache.reserves:
            raise UserError(f"--prefix-cache {word}: contiguous reservations (--kv-reserve) cannot share a prefix")
        return cached(system)

    return change


def _dtype(text: str) -> Change:
    settings = layer_settings("--kv-cache-dtype", text)
    schemes = [parse_cache_scheme(one.text) for one in settings]
    if all(one.cache is None for one in schemes):
        return unchanged
    passes = [as_built if one.cache is None else quantize(one) for one in schemes]
    change = by_layer("--kv-cache-dtype", settings, passes)
    alone = schemes[0].cache if len(settings) == 1 and schemes[0].values is None else None
    name = text if alone is None else alone.name
    return add_pass(f"quantize({name} cache)", lambda _: change)


DTYPE = Technique(
    name="kv_cache_dtype",
    kind="compression",
    summary="Stores keys, values and latents in fewer bits; attention computes in 16 bits.",
    parameters={
        "FORMAT": "auto, fp8, int8, kv4 ..., or bits of keys and of values: k8v4",
        "FORMAT@LAYERS": "after a +: another format for these layers, counted from 0: k4v2+kv8@0-1/30-31 (KVTuner)",
    },
    formula="integers n + 32/head_dim bits per element, fp8 8 bits; wins over kv# of --quantization",
    source="KIVI arXiv 2402.02750; KVTuner arXiv 2502.04420; vLLM --kv-cache-dtype, "
    "https://docs.vllm.ai/en/latest/features/quantization/",
    example="llmviewer analyze llama-2-7b --hardware h100 --input-len 3072 --kv-cache-dtype fp8",
    make=_dtype,
)
