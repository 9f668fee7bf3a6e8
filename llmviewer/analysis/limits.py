"""Largest batch, longest context and most concurrent requests that fit in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.analysis import memory
from llmviewer.analysis.capacity import memory_of
from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.workload import Request
from llmviewer.models.fields import ABSENT_CONTEXT
from llmviewer.models.model import Model
from llmviewer.serving.prompts import prompt_thresholds

#: Upper bound of every search.
SEARCH_LIMIT = 2.0**32


def assumptions(model: Model, system: System, token_budget: float = np.inf) -> dict[str, str | float | None]:
    """Facts on which the largest batch and context depend, by name; None means no limit or not stated.

    token_budget: most tokens of a prefill pass, which sets the activations; None: all prompts together.  engine: it
    sets the default budget.  gpu_memory_utilization: fraction of the memory.  model_max_context_len: the context that
    the model was built for, which memory alone does not enforce.
    """
    return {
        "token_budget": None if np.isinf(token_budget) else int(token_budget),
        "engine": system.engine.name,
        "gpu_memory_utilization": system.memory_utilization,
        "model_max_context_len": None if model.max_context >= ABSENT_CONTEXT else int(model.max_context),
    }


def max_batch_size(model: Model, system: System, request: Request, token_budget: float = np.inf) -> float:
    """The largest batch of this request (one point) that fits."""

    def fits(batches: Count) -> Count:
        return memory_of(model, system, replace(request, batch_size=batches), token_budget).fits

    return memory.largest(fits, SEARCH_LIMIT)


def max_context_len(model: Model, system: System, request: Request, token_budget: float = np.inf) -> float:
    """The longest input_len + output_len of this request (one point) that fits, with its output_len."""
    output = float(np.max(system.batching.padded(request).output_len))

    def fits(prompts: Count) -> Count:
        return memory_of(model, system, replace(request, input_len=prompts), token_budget).fits

    # under a token budget, memory falls where a pass holds one prompt less, and rises between these lengths
    starts = 1.0 + np.append(0.0, prompt_thresholds(float(np.max(request.batch_size)), token_budget, system.kv_cache))
    if system.generation.branches is not None:
        starts = np.union1d(
            starts, 1.0 + system.generation.branches.prompt_thresholds(request.batch_size, output, token_budget)
        )
    fitting = np.asarray(fits(starts), dtype=bool)
    if not fitting.any():
        return 0.0
    last = int(np.flatnonzero(fitting)[-1])
    limit = SEARCH_LIMIT if last == len(starts) - 1 else float(starts[last + 1]) - 1.0
    return memory.largest(fits, limit, float(starts[last])) + output


def max_concurrent_requests(model: Model, system: System, request: Request, token_budget: float = np.inf) -> float:
    """Requests of full length whose caches fit together: floor((cache budget - shared prefix) / cache of one request).

    Activations are those of one step of an engine that admits prompts one after another: as many whole prompts as the
    token budget allows, one where there is none.  vLLM logs it as "Maximum concurrency" (for its longest context).
    """
    replicas = system.parallelism.data
    system = system.one_replica()
    new = request.input_len - system.kv_cache.prefix_hit(request.input_len)
    together = 1.0 if token_budget == np.inf else float(np.maximum(np.floor(token_budget / new), 1.0))
    sizes = replace(request, batch_size=np.array([1.0, 2.0, together]))
    memories = memory_of(model, system, sizes, token_budget)
    first, both, _ = np.asarray(memories.kv_cache_bytes)
    own, budget = both - first, np.asarray(memories.kv_cache_budget_bytes)[2]
    if not own:  # no layer has a cache
        return np.inf
    return float(np.maximum(np.floor((budget - (first - own)) / own), 0.0)) * replicas
