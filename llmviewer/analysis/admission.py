"""The request that is priced: one point per chip, and the sequences that a batching policy runs concurrently."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from llmviewer.analysis.capacity import concurrent_sequences, memory_of, with_reserved_output
from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request
from llmviewer.models.model import Model
from llmviewer.serving.batching import Replica, Running


def running_of(model: Model, system: System, requested: Request, token_budget: float) -> tuple[Request, Running | None]:
    """Sequences that run concurrently, of all replicas and of each."""
    requested = system.batching.padded(requested)
    running = system.batching.admit(system.parallelism.replica(requested), replica_of(model, system, token_budget))
    if running is None:
        return requested, None
    return _of_replicas(system, running), running


def stored_request(system: System, request: Request, running: Running | None) -> Request:
    """The sequences whose caches are stored at once; those that start one by one with the output that the engine
    reserves for each."""
    if running is None:
        return system.batching.padded(request)
    return with_reserved_output(system, _of_replicas(system, running))


def _of_replicas(system: System, running: Running) -> Request:
    """The sequences that run concurrently on all replicas."""
    return replace(running.request, batch_size=running.request.batch_size * system.parallelism.data)


def one_per_chip(request: Request, system: System) -> Request:
    """A request for each hypothetical chip, where the system's figures are arrays."""
    chips = system.chip.points
    if 1 < (points := max(map(np.size, (request.batch_size, request.input_len, request.output_len)))) != chips > 1:
        raise UserError(f"sequences of one length are needed: the chip's figures have {chips}, the request {points}")
    return request if chips == 1 else replace(request, batch_size=request.batch_size * np.ones(chips))


def replica_of(model: Model, system: System, token_budget: float) -> Replica:
    """One replica of the system with its model.  token_budget: most tokens of one prefill pass."""
    return Replica(
        max_sequences=partial(concurrent_sequences, model, system),
        prompt_bytes=partial(_prompt_bytes, model, system),
        new_tokens=lambda request: request.input_len - system.kv_cache.prefix_hit(request.input_len),
        token_budget=token_budget,
        microbatches=system.parallelism.microbatches,
        verified_tokens=system.generation.shape.new_tokens,
        tokens_per_round=system.generation.tokens,
    )


def _prompt_bytes(model: Model, system: System, request: Request) -> Count:
    """KV cache of one prompt on each device, of the model and its draft models, without pages, reservations or room
    for draft tokens [byte]."""
    single = 0.0 * request.batch_size + 1.0
    prompt = replace(request, batch_size=single, output_len=single)
    return memory_of(model, system.one_replica().prefilling(), prompt).kv_cache_used_bytes
