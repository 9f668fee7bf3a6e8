"""KV tokens and concurrency as an engine reports them at start-up."""

from __future__ import annotations

import numpy as np

from llmviewer.analysis.cache_blocks import CacheBlocks, cache_blocks
from llmviewer.analysis.memory import Memory
from llmviewer.analysis.passes import graph_of_device, largest_passes_of
from llmviewer.analysis.system import System
from llmviewer.core.ir import Graph
from llmviewer.core.workload import Request
from llmviewer.models.fields import ABSENT_CONTEXT
from llmviewer.models.model import Model
from llmviewer.serving.kv_cache import DEFAULT_KV_CACHE


def blocks_of_engine(model: Model, system: System) -> CacheBlocks | None:
    """The layout of the engine's KV cache on one device; None if it is not known or another policy replaces it."""
    if system.engine.memory is None or system.kv_cache != DEFAULT_KV_CACHE or system.generation.counts_passes:
        return None
    if system.drafters:
        return None
    return cache_blocks(graph_of_engine(model, system))


def graph_of_engine(model: Model, system: System) -> Graph:
    """The graph of one device at the smallest request."""
    plan = largest_passes_of(model, system, Request(batch_size=1.0, input_len=1.0, output_len=1.0), np.inf)
    return graph_of_device(model, system, plan)


def engine_limits(model: Model, system: System, memory: Memory) -> dict[str, float | None]:
    """Longest context, tokens that the KV cache holds and requests of the longest context in it (one point).

    None where the engine's memory or the longest context is not known.
    """
    longest = system.engine.max_model_len or (model.max_context if model.max_context < ABSENT_CONTEXT else None)
    found: dict[str, float | None] = {"max_model_len": longest, "kv_cache_tokens": None, "max_concurrency": None}
    blocks, constants = blocks_of_engine(model, system), system.engine.memory
    if blocks is None or constants is None:
        return found
    budget = memory.kv_cache_budget_bytes
    found["kv_cache_tokens"] = float(np.max(blocks.capacity_tokens(budget)))
    if longest is not None:
        found["max_concurrency"] = float(np.max(blocks.concurrency(budget, longest, constants.tokens)))
    return found
