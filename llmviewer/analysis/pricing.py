"""Times of the forward passes of one model: one evaluation, or several pieces where the passes are too many."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.analysis.evaluation import Evaluation, evaluate
from llmviewer.analysis.passes import system_per_pass
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.malloc import keep_freed_memory
from llmviewer.core.workload import Step
from llmviewer.models.model import Model
from llmviewer.serving.schedule import Schedule

#: Forward passes whose arrays take kilobytes.
MANY_PASSES = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassTimes:
    """Times of the passes of a schedule; arrays have one entry per pass.

    evaluation: the passes of the first piece, operator by operator.  time_s: time of a pass through all pipeline
    stages.  busiest_s: its time on the slowest pipeline stage.  fill_s: per point, time of one token on the other
    stages, where prefill passes may be cut into chunks of any size; None where they run as scheduled.
    later_read_bytes: weights and cache read per pass where there are several pieces; None where `evaluation` holds all
    passes.
    """

    schedule: Schedule
    evaluation: Evaluation
    time_s: Count
    busiest_s: Count
    fill_s: Count | None = None
    later_read_bytes: Count | None = None

    @property
    def read_bytes(self) -> Count:
        """Weights and cache that each pass reads from device memory [byte]."""
        return self.evaluation.read_bytes if self.later_read_bytes is None else self.later_read_bytes

    @property
    def is_whole(self) -> bool:
        """Whether `evaluation` holds all passes of the schedule."""
        return self.later_read_bytes is None


def price(model: Model, system: System, plan: Schedule) -> PassTimes:
    """Times of all passes of `plan`, without those of draft models."""
    if len(plan.repeats) > MANY_PASSES:
        keep_freed_memory()
    (piece, step), *later = plan.pieces()
    first = evaluate(model, system_per_pass(system, plan, piece), step)
    if not later:
        time_s, busiest_s = first.passing_s
        return PassTimes(
            schedule=plan, evaluation=first, time_s=time_s, busiest_s=busiest_s, fill_s=_fill_s(model, system, plan)
        )
    pieces = [_of_each_pass(step, first)]
    pieces += (
        _of_each_pass(step, evaluate(model, system_per_pass(system, plan, piece), step)) for piece, step in later
    )
    time_s, busiest_s, read = np.concatenate(pieces, axis=1)
    return PassTimes(
        schedule=plan,
        evaluation=first,
        time_s=time_s,
        busiest_s=busiest_s,
        fill_s=_fill_s(model, system, plan),
        later_read_bytes=read,
    )


def _fill_s(model: Model, system: System, plan: Schedule) -> Count | None:
    """Time of one token on all pipeline stages but the slowest, per point [s]; None where passes run as scheduled."""
    if not system.any_chunks or system.parallelism.pipeline == 1:
        return None
    prefill, one = slice(plan.prefill_passes), np.ones(plan.prefill_passes)
    (group,) = plan.step.groups
    token = Step((replace(group.select(prefill), batch_size=one, new_tokens=one),))
    time_s, busiest_s = evaluate(model, system_per_pass(system, plan, prefill), token).passing_s
    return plan.prefill_max(time_s - busiest_s)


def _of_each_pass(step: Step, priced: Evaluation) -> Array:
    """Time, time of the slowest pipeline stage and bytes read, one column per pass of a piece.

    A draft without a cache has the same figures in all passes, so scalars are broadcast.
    """
    return np.stack(np.broadcast_arrays(*priced.passing_s, priced.read_bytes, step.tokens)[:3])
