"""KV tokens and concurrency as an engine reports them at start-up, and whether it starts at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from llmviewer.analysis.cache_blocks import CacheBlocks, cache_blocks
from llmviewer.analysis.memory import Memory, shares_of_cache
from llmviewer.analysis.passes import graph_of_device, largest_passes_of
from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.ir import Graph
from llmviewer.core.workload import Request
from llmviewer.models.fields import ABSENT_CONTEXT
from llmviewer.models.model import Model
from llmviewer.serving.kv_cache import DEFAULT_KV_CACHE
from llmviewer.timing.engine import AtStart


def layout_of_engine(model: Model, system: System) -> CacheBlocks | str:
    """The layout of the engine's KV cache on one device, or why it is not known."""
    if system.engine.memory is None:
        return "the memory of this engine is not known"
    if system.kv_cache != DEFAULT_KV_CACHE or system.generation.counts_passes:
        return "options of the KV cache replace the engine's own blocks"
    if system.drafters:
        return "blocks of a draft model's layers are not known"
    return cache_blocks(graph_of_engine(model, system))


def blocks_of_engine(model: Model, system: System) -> CacheBlocks | None:
    """The layout of the engine's KV cache on one device; None if it is not known or another policy replaces it."""
    found = layout_of_engine(model, system)
    return found if isinstance(found, CacheBlocks) else None


def graph_of_engine(model: Model, system: System) -> Graph:
    """The graph of one device at the smallest request."""
    plan = largest_passes_of(model, system, Request(batch_size=1.0, input_len=1.0, output_len=1.0), np.inf)
    return graph_of_device(model, system, plan)


def at_start(model: Model, system: System, memory: Memory) -> dict[str, Any]:
    """Figures that an engine reports at start-up, whether it starts, and doubt about what fits (one point)."""
    layout = layout_of_engine(model, system)
    return {
        **engine_limits(model, system, memory, layout),
        **start_limits(model, system, memory, layout),
        **edge_limits(system, memory),
    }


def engine_limits(
    model: Model, system: System, memory: Memory, layout: CacheBlocks | str | None = None
) -> dict[str, Any]:
    """Longest context, tokens that the KV cache holds and requests of the longest context in it (one point).

    layout: that of layout_of_engine, if it is known already.  None where the engine's memory or the longest context is
    not known; kv_cache_tokens_unknown says why.
    """
    longest = longest_context(model, system)
    layout, constants = layout or layout_of_engine(model, system), system.engine.memory
    names = ("max_model_len", "kv_cache_tokens", "max_concurrency", "kv_cache_tokens_unknown")
    if isinstance(layout, str) or constants is None:
        return dict(zip(names, (longest, None, None, layout), strict=True))
    budget = memory.kv_cache_budget_bytes
    tokens, concurrency = float(np.max(layout.capacity_tokens(budget))), None
    if longest is not None:
        concurrency = float(np.max(layout.concurrency(budget, longest, constants.tokens)))
        tokens = float(np.floor(concurrency * longest)) if constants.tokens_of_requests else tokens
    return dict(zip(names, (longest, tokens, concurrency, None), strict=True))


def longest_context(model: Model, system: System) -> float | None:
    """The longest context that an engine serves: --max-model-len, else the model's; None if neither is stated."""
    return system.engine.max_model_len or (model.max_context if model.max_context < ABSENT_CONTEXT else None)


def start_limits(model: Model, system: System, memory: Memory, layout: CacheBlocks | str) -> dict[str, Any]:
    """Whether the engine starts with its longest context (one point): `starts`, `max_model_len_to_start`, `refusal`.

    starts: None where the engine's rule, its cache or the longest context is not known.  refusal: its reason in words.
    """
    starts, most = _start(model, system, memory, layout)
    refusal, context = None, longest_context(model, system)
    if starts is False:
        at = f" at {context:,.0f} tokens" if most else ""
        advice = f"pass --max-model-len {most} or less" if most else "no memory is left for the cache of one sequence"
        refusal = f"{system.engine.title.split()[0]} refuses to start{at}: {advice}"
    return {"starts": starts, "max_model_len_to_start": most, "refusal": refusal}


def _start(model: Model, system: System, memory: Memory, layout: CacheBlocks | str) -> tuple[bool | None, int | None]:
    """Whether the engine starts, and most tokens with which it does; None where they are not known or not limited."""
    engine, context = system.engine, longest_context(model, system)
    if engine.start is AtStart.UNKNOWN or context is None or system.drafters:
        return None, None
    needed, allocates = _needed(model, system, layout), engine.start is AtStart.ALLOCATES
    budget = float(np.max(memory.left_by_others(memory.capacity_bytes) if allocates else memory.kv_cache_budget_bytes))
    if budget and (engine.start is AtStart.SHORTENS or not needed(1.0)):
        return True, None
    most = _largest(needed, budget, int(max(context, min(model.max_context, ABSENT_CONTEXT))))
    if allocates and engine.max_model_len is None:
        return None, most
    return most >= context, most


def edge_limits(system: System, memory: Memory) -> dict[str, Any]:
    """Doubt about the total (one point) [byte], and whether it decides if the total fits.

    The doubt is the largest error, over published logs of vLLM, of what is not counted from shapes: activations of the
    profiling run, memory outside PyTorch and CUDA graphs (docs/reference/memory.md).  None for engines without such
    constants.
    """
    constants = system.engine.memory
    if constants is None:
        return {"uncertainty_bytes": None, "at_edge": None}
    doubt = float(
        np.max(
            constants.activations_spread * memory.activations_bytes
            + constants.framework_spread * memory.framework_bytes
            + constants.graphs_spread * memory.cuda_graphs_bytes
        )
    )
    margin = float(np.max(memory.budget_bytes - memory.total_bytes))
    return {"uncertainty_bytes": doubt, "at_edge": abs(margin) <= doubt}


def most_tokens(model: Model, system: System, memory: Memory) -> int | None:
    """Tokens of the longest sequence that the cache holds, up to the longest context; None if none is stated."""
    context = longest_context(model, system)
    if context is None:
        return None
    needed = _needed(model, system, layout_of_engine(model, system))
    return _largest(needed, float(np.max(memory.kv_cache_budget_bytes)), int(context))


def _needed(model: Model, system: System, layout: CacheBlocks | str) -> Callable[[float], float]:
    """Bytes of the cache that an engine reserves for one sequence, by its tokens."""
    constants = system.engine.memory
    if isinstance(layout, CacheBlocks) and constants is not None:
        return lambda tokens: float(layout.blocks_of(tokens, constants.tokens)) * layout.block_bytes
    graph = graph_of_engine(model, system)

    def stored(tokens: Count) -> float:
        return float(np.max(shares_of_cache(graph, system.kv_cache, tokens, 0.0)[0]))

    return stored


def _largest(needed: Callable[[float], float], budget: float, most: int) -> int:
    """Most tokens, up to `most`, whose cache fits in a budget."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(float(middle)) <= budget else (low, middle - 1)
    return low
