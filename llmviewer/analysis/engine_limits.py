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

#: Why an engine without a budget for its cache does not start.
NO_CACHE = "no memory is left for the KV cache of one sequence"


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
    """What an engine reports at start-up, whether it starts, and whether doubt decides if the total fits (one point)."""
    return {
        **engine_limits(model, system, memory),
        **start_limits(model, system, memory),
        **edge_limits(system, memory),
    }


def engine_limits(model: Model, system: System, memory: Memory) -> dict[str, Any]:
    """Longest context, tokens that the KV cache holds and requests of the longest context in it (one point).

    None where the engine's memory or the longest context is not known; kv_cache_tokens_unknown says why.
    """
    longest = longest_context(model, system)
    layout, constants = layout_of_engine(model, system), system.engine.memory
    found = {"max_model_len": longest, "kv_cache_tokens": None, "max_concurrency": None}
    if isinstance(layout, str) or constants is None:
        return {**found, "kv_cache_tokens_unknown": layout}
    budget = memory.kv_cache_budget_bytes
    found["kv_cache_tokens"] = float(np.max(layout.capacity_tokens(budget)))
    if longest is not None:
        found["max_concurrency"] = float(np.max(layout.concurrency(budget, longest, constants.tokens)))
        if constants.tokens_of_requests:
            found["kv_cache_tokens"] = float(np.floor(found["max_concurrency"] * longest))
    return {**found, "kv_cache_tokens_unknown": None}


def longest_context(model: Model, system: System) -> float | None:
    """The longest context that an engine serves: --max-model-len, else the model's; None if neither is stated."""
    return system.engine.max_model_len or (model.max_context if model.max_context < ABSENT_CONTEXT else None)


def start_limits(model: Model, system: System, memory: Memory) -> dict[str, Any]:
    """Whether the engine starts with its longest context (one point): `starts`, `max_model_len_to_start`, `refusal`.

    starts: None where the engine's rule, its cache or the longest context is not known.  refusal: its reason in words.
    """
    unknown = {"starts": None, "max_model_len_to_start": None, "refusal": None}
    engine, context = system.engine, longest_context(model, system)
    if engine.start is AtStart.UNKNOWN or context is None or system.drafters:
        return unknown
    name = engine.title.split()[0]
    budget = memory.kv_cache_budget_bytes
    if engine.start is AtStart.ALLOCATES:
        budget = memory.left_by_others(memory.capacity_bytes)
    needed = _needed(model, system)
    if not needed(1.0):  # nothing is cached
        return unknown if engine.start is AtStart.ALLOCATES else {**unknown, "starts": True}
    if not np.max(budget):
        return {"starts": False, "max_model_len_to_start": 0, "refusal": f"{name} refuses to start: {NO_CACHE}"}
    if engine.start is AtStart.SHORTENS:
        return {**unknown, "starts": True}
    largest = _largest(needed, float(np.max(budget)), int(max(context, min(model.max_context, ABSENT_CONTEXT))))
    if engine.start is AtStart.ALLOCATES and engine.max_model_len is None:
        return {**unknown, "max_model_len_to_start": largest}
    if largest >= context:
        return {"starts": True, "max_model_len_to_start": largest, "refusal": None}
    pass_it = f"pass --max-model-len {largest} or less" if largest else NO_CACHE
    refusal = f"{name} refuses to start at {context:,.0f} tokens: {pass_it}"
    return {"starts": False, "max_model_len_to_start": largest, "refusal": refusal}


def edge_limits(system: System, memory: Memory) -> dict[str, Any]:
    """Doubt about the total (one point) [byte], and whether it decides if the total fits.

    The doubt is the largest error, over published logs of vLLM, of what is not counted from shapes: activations of the
    profiling run, memory outside PyTorch and CUDA graphs (docs/memory.md).  None for engines without such constants.
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


def _needed(model: Model, system: System) -> Callable[[float], float]:
    """Bytes of the cache that an engine reserves for one sequence, by its tokens."""
    layout, constants = layout_of_engine(model, system), system.engine.memory
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
