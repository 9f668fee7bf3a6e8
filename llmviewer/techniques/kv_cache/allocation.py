"""Memory allocation of the KV cache: pages, contiguous reservation, budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.techniques.technique import Change, Parameter, Technique, change_kv_cache, parse_numbers

_PAGE = Parameter(name="tokens", low=1, high=65536, whole=True)
_RESERVED = Parameter(name="tokens", high=1e8, whole=True)
#: Names of reservations that depend on the model or the request -> fields of KvCache.
SIZES = {"max": {"reserve": np.inf}, "pow2": {"growth": 2.0}}
_EXTERNAL = Parameter(name="external", default=0.0, high=0.99)
_FRACTION = Parameter(name="fraction", low=1e-6, high=1.0)


def _page(text: str) -> Change:
    """Allocate whole pages to every sequence; on average (block - 1) / 2 tokens of the last page are empty.

    A window may begin and end inside pages and uses up to one page more.  Recurrent state has no pages; block tables
    (4 bytes per page) are not counted.  Attention reads tokens, not pages.
    """
    tokens = parse_numbers("--kv-block-size", text, (_PAGE,))["tokens"]
    return change_kv_cache(f"paged({tokens:g})", block_size=tokens) if tokens > 1 else lambda system: system


def _reserve(text: str) -> Change:
    """Allocate max(context, reserved) tokens to every sequence at its start, in one piece.

    `max` is the model's maximum context, `pow2` the next power of two of the context.  external: share of the cache's
    memory that lies between such pieces and is too short for another one; pages have no such gaps.
    """
    size, comma, rest = (word.strip() for word in text.lower().partition(","))
    numbers = parse_numbers("--kv-reserve", rest, (_EXTERNAL,)) if comma else {"external": 0.0}
    gaps = f", external={numbers['external']:g}" if comma else ""
    if size in SIZES:
        return change_kv_cache(f"reserved({size}{gaps})", fragmented=numbers["external"], **SIZES[size])
    tokens = parse_numbers("--kv-reserve", size, (_RESERVED,))["tokens"]
    if not tokens:
        return lambda system: system
    return change_kv_cache(f"reserved({tokens:,.0f}{gaps})", reserve=tokens, fragmented=numbers["external"])


def _budget(text: str) -> Change:
    """Limit the cache to a fraction of the capacity that weights, activations and framework memory leave free.

    This replaces vLLM's rule (--gpu-memory-utilization), which limits all tensors to a fraction of the whole capacity.
    """
    fraction = parse_numbers("--kv-cache-free-gpu-memory-fraction", text, (_FRACTION,))["fraction"]
    return lambda system: replace(system, cache_fraction=fraction).listing(f"kv_budget({fraction:g} of free)")


PAGES = Technique(
    name="kv_block_size",
    kind="kv cache",
    summary="Allocates the KV cache in whole pages of tokens (PagedAttention); part of the last page stays empty.",
    formula="ceil(tokens / block) block, mean waste (block - 1) / 2 tokens a sequence; a window of w tokens at most "
    "ceil((w - 1) / block) + 1 pages; block tables not counted",
    source="PagedAttention (vLLM) arXiv 2309.06180, section 4.2",
    example="llmviewer analyze llama-2-7b --hardware a100 --input-len 500 --kv-block-size 16",
    make=_page,
)
RESERVATION = Technique(
    name="kv_reserve",
    kind="kv cache",
    summary="Reserves contiguous KV cache for the longest context of a sequence when the sequence starts.",
    parameters={
        "TOKENS": "tokens reserved for every sequence; max: the model's longest context; pow2: the next power of two",
        "external": "share of the cache's memory lost between reservations (external fragmentation); default 0",
    },
    formula="max(context, reserved) tokens a sequence, or 2^ceil(log2 context), a windowed layer at most its window; "
    "divided by 1 - external; the rest is waste",
    source="FasterTransformer, Orca (Max) and Orca (Pow2) as arXiv 2309.06180 describes them, sections 3 and 6.1; its "
    "figure 2 measures 8.9 % external fragmentation for Orca (Max), 41.6 % for Orca (Pow2)",
    example="llmviewer analyze llama-2-7b --hardware a100 --input-len 500 --kv-reserve max",
    make=_reserve,
)
BUDGET = Technique(
    name="kv_cache_free_gpu_memory_fraction",
    kind="kv cache",
    summary="Limits the KV cache to a fraction of the free memory, instead of all tensors to one of the whole memory.",
    formula="cache <= fraction (capacity - weights - activations - framework); vLLM: cache <= utilization capacity - "
    "weights - activations - framework",
    source="TensorRT-LLM, https://nvidia.github.io/TensorRT-LLM/reference/memory.html",
    example="llmviewer analyze llama-2-7b --hardware a100 --kv-cache-free-gpu-memory-fraction 0.9",
    make=_budget,
)
