"""The forward passes of one model, priced: in one evaluation, or piece by piece where they are too many."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.analysis.capacity import memory_in, memory_of, on_a_device, per_pass, roomy
from llmviewer.analysis.evaluation import Evaluation, evaluate
from llmviewer.analysis.memory import Memory
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.malloc import keep_freed_memory
from llmviewer.core.workload import Request, Step
from llmviewer.models.model import Model
from llmviewer.serving.batching import Running
from llmviewer.serving.schedule import Schedule, schedule

#: Forward passes of which arrays take kilobytes.
MANY_PASSES = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassTimes:
    """What the passes of a schedule take; fields as of an Analysis."""

    schedule: Schedule
    evaluation: Evaluation
    memory: Memory
    time_s: Count
    busiest_s: Count
    read_bytes: Count | None = None


def price(model: Model, system: System, request: Request, token_budget: float, running: Running | None) -> PassTimes:
    """The passes that answer a request, or what of it runs at once, without those of drafts."""
    plan = _passes(system, request, token_budget, running)
    kept = request if running is None else roomy(system, request)
    if len(plan.repeats) > MANY_PASSES:
        keep_freed_memory()
    (piece, step), *later = plan.pieces()
    first = evaluate(model, per_pass(system, plan, piece), step)
    if not later:
        held = memory_in(model, system, kept, plan, first.graph)
        time_s, busiest_s = first.passing_s
        return PassTimes(schedule=plan, evaluation=first, memory=held, time_s=time_s, busiest_s=busiest_s)
    if running is None:
        held = memory_of(model, replace(system, drafters=()), kept, token_budget)
    else:
        most = plan.largest()
        held = memory_in(model, system, kept, most, on_a_device(model, system, most))
    all_of = [_of_each_pass(step, first)]
    all_of += (_of_each_pass(step, evaluate(model, per_pass(system, plan, piece), step)) for piece, step in later)
    time_s, busiest_s, read = np.concatenate(all_of, axis=1)
    return PassTimes(schedule=plan, evaluation=first, memory=held, time_s=time_s, busiest_s=busiest_s, read_bytes=read)


def _of_each_pass(step: Step, priced: Evaluation) -> Array:
    """Time through all stages, that of the slowest, and bytes read, a column for each pass of a piece: what drafts
    without a cache takes the same in all."""
    return np.stack(np.broadcast_arrays(*priced.passing_s, priced.read_bytes, step.tokens)[:3])


def _passes(system: System, request: Request, token_budget: float, running: Running | None) -> Schedule:
    """The passes of the fullest replica, micro-batch by micro-batch."""
    own = system.parallelism.microbatch(request)
    if running is None:
        plan = schedule(own, token_budget, system.kv_cache, generation=system.generation)
    else:
        budget = token_budget if running.chunk_tokens is None else running.chunk_tokens
        together = running.together
        if system.parallelism.microbatches > 1:
            together = np.minimum(together, own.batch_size)
        plan = schedule(own, budget, system.kv_cache, together, system.generation)
        if np.any(running.filled):
            plan = plan.filled(budget * running.filled)
        if np.any(running.riders):
            context = own.input_len + np.maximum(own.output_len - 2.0, 0.0) / 2.0
            plan = plan.riding(running.riders, context)
    return plan if system.parallelism.microbatches == 1 else plan.repeated(system.parallelism.in_flight(request))
