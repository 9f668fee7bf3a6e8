"""One replica of a system, as batching policies see it: concurrent sequences, cache of a prompt."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.analysis.capacity import concurrent_sequences, memory_of
from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.workload import Request
from llmviewer.models.model import Model
from llmviewer.serving.batching import Replica


def replica_of(model: Model, system: System, token_budget: float) -> Replica:
    """One replica of the system with its model.  token_budget: most tokens of one prefill pass."""
    return Replica(
        max_sequences=partial(concurrent_sequences, model, system),
        prompt_bytes=partial(_prompt_bytes, model, system),
        new_tokens=lambda request: request.input_len - system.kv_cache.prefix_hit(request.input_len),
        token_budget=token_budget,
    )


def _prompt_bytes(model: Model, system: System, request: Request) -> Count:
    """KV cache of one prompt on each device, without pages or reservations [byte]."""
    single = 0.0 * request.batch_size + 1.0
    prompt = replace(request, batch_size=single, output_len=single)
    return memory_of(model, system.one_replica(), prompt).kv_cache_used_bytes
