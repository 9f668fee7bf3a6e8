"""What a way of batching may ask of the system whose time it shares out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from llmviewer.analysis.capacity import memory_of, per_pass, places
from llmviewer.analysis.evaluation import evaluate
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.workload import Request, Step
from llmviewer.models.model import Model
from llmviewer.serving.batching import Replica
from llmviewer.serving.schedule import schedule


def replica_of(model: Model, system: System, token_budget: float) -> Replica:
    """One replica of the system with its model."""
    return Replica(
        places=partial(places, model, system),
        prefill_s=partial(_prefill_s, model, system, token_budget),
        step_s=partial(_step_s, model, system),
        prompt_bytes=partial(_prompt_bytes, model, system),
        new_tokens=lambda request: request.input_len - system.kv_cache.found(request.input_len),
        token_budget=token_budget,
    )


def _prefill_s(model: Model, system: System, token_budget: float, request: Request) -> Array:
    plan = schedule(request, token_budget, system.kv_cache)
    return plan.through_stages(*evaluate(model, per_pass(system, plan), plan.step).passing_s)


def _step_s(model: Model, system: System, step: Step) -> Count:
    """Through all stages; of hypothetical chips the points follow each other in every row of passes."""
    chips = system.chip.points
    if chips > 1:
        owners = np.arange(float(np.size(step.tokens))) % chips
        system = replace(system, chip=system.chip.spread(owners))
    seconds, _ = evaluate(model, system, step).passing_s
    return seconds


def _prompt_bytes(model: Model, system: System, request: Request) -> Count:
    """Without pages or reservations around it."""
    one = 0.0 * request.batch_size + 1.0
    alone = replace(request, batch_size=one, output_len=one)
    return memory_of(model, system.one_replica(), alone).kv_cache_used_bytes
