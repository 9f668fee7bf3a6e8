"""One replica of a system, as batching policies see it: concurrent sequences, prefill time, step time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from llmviewer.analysis.capacity import concurrent_sequences, memory_of
from llmviewer.analysis.evaluation import evaluate
from llmviewer.analysis.passes import system_per_pass
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.workload import Request, Step
from llmviewer.models.model import Model
from llmviewer.serving.batching import Replica
from llmviewer.serving.schedule import schedule


def replica_of(model: Model, system: System, token_budget: float) -> Replica:
    """One replica of the system with its model.  token_budget: most tokens of one prefill pass."""
    return Replica(
        max_sequences=partial(concurrent_sequences, model, system),
        prefill_s=partial(_prefill_s, model, system, token_budget),
        step_s=partial(_step_s, model, system),
        prompt_bytes=partial(_prompt_bytes, model, system),
        new_tokens=lambda request: request.input_len - system.kv_cache.prefix_hit(request.input_len),
        token_budget=token_budget,
    )


def _prefill_s(model: Model, system: System, token_budget: float, request: Request) -> Array:
    """Prefill time of all prompts of a request together [s]."""
    plan = schedule(request, token_budget, system.kv_cache)
    return plan.pipelined_prefill(*evaluate(model, system_per_pass(system, plan), plan.step).passing_s)


def _step_s(model: Model, system: System, step: Step) -> Count:
    """Time of a forward pass through all pipeline stages [s]; hypothetical chips take turns in each row of passes."""
    chips = system.chip.points
    if chips > 1:
        owners = np.arange(float(np.size(step.tokens))) % chips
        system = replace(system, chip=system.chip.spread(owners))
    seconds, _ = evaluate(model, system, step).passing_s
    return seconds


def _prompt_bytes(model: Model, system: System, request: Request) -> Count:
    """KV cache of one prompt on each device, without pages or reservations [byte]."""
    single = 0.0 * request.batch_size + 1.0
    prompt = replace(request, batch_size=single, output_len=single)
    return memory_of(model, system.one_replica(), prompt).kv_cache_used_bytes
