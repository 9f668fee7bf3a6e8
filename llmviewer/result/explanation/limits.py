"""Limits of the memory as explained numbers: the largest batch, the longest context, requests that fit together."""

from __future__ import annotations

import numpy as np

from llmviewer.analysis.capacity import memory_of
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request
from llmviewer.result.explanation.metrics import Question
from llmviewer.result.explanation.node import Node
from llmviewer.result.result import Result
from llmviewer.result.stages import request_at, system_at, value_at

#: Limit -> what it is.
LIMITS = {
    "max_batch_size": "largest batch whose total stays within the budget (analysis/limits.py)",
    "max_context_len": "longest input_len + output_len of this batch whose total stays within the budget",
    "max_concurrent_requests": "requests of full length whose caches fit together in what others leave of the budget",
    "max_model_len": "longest context that the engine serves (--max-model-len, else the model's)",
    "max_model_len_to_start": "longest context that fits the budget of the cache (analysis/engine_limits.py)",
    "kv_cache_tokens": "tokens of whole blocks that the budget of the cache holds, of vLLM since 0.20.2 "
    "max_concurrency x max_model_len (analysis/engine_limits.py)",
    "max_concurrency": "requests of the longest context that the budget of the cache holds (analysis/engine_limits.py)",
}
#: Limit of a search -> the size of the request that varies.
VARIED = {"max_batch_size": "batch_size", "max_context_len": "input_len"}


def limit(result: Result, one: Question, name: str) -> Node:
    """A limit with the memory that it leaves.  Raises UserError for one that is not known."""
    found = result.memory_at(one.point)[name]
    if found is None:
        raise UserError(f"memory.{name} is not known here: no limit, or the engine's memory is not known")
    value = float(found)
    children = _evidence(result, one, name, value) if name in VARIED and value else ()
    return Node(name=name, value=value, source=LIMITS[name], children=children)


def _evidence(result: Result, one: Question, name: str, value: float) -> tuple[Node, ...]:
    """The total at the limit, one beyond it, and the budget."""
    own = one.analysis
    system, request, size = system_at(own, one.point), request_at(own, one.point), VARIED[name]
    largest = value - (request.output_len if size == "input_len" else 0.0)
    sizes = np.array([largest, largest + 1.0])
    columns = {field: getattr(request, field) * np.ones(2) for field in ("batch_size", "input_len", "output_len")}
    memory = memory_of(own.model, system, Request(**{**columns, size: sizes}), result.token_budget)
    source = "memory of a request of this size (analysis/capacity.py)"
    found = (
        Node(
            name=f"total_bytes at {size} {tried:.0f}",
            value=value_at(memory.total_bytes, at),
            unit="byte",
            source=source,
        )
        for at, tried in enumerate(sizes)
    )
    budget = Node(
        name="budget_bytes", value=value_at(memory.budget_bytes, 0), unit="byte", source="memory.budget_bytes"
    )
    return (*found, budget)
