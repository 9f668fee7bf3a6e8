"""How a prompt's time divides between one rank and all that share experts, from two prices of its passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.analysis.evaluation import NO_TIME_S, Evaluation, evaluate, system_per_pass
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.workload import Step
from llmviewer.models.model import Model
from llmviewer.ops.collective import is_of_all_ranks
from llmviewer.serving.schedule import Schedule


def rank_shares(model: Model, system: System, schedule: Schedule, evaluation: Evaluation) -> tuple[Array, Array]:
    """Shares of the time that prompts add to a decode step, one entry per point: work on the tokens of all ranks that
    grows with them, and that which is paid as soon as any rank has prompts (weights of experts that are read).

    A pass is priced as if every rank had as many prompts; the work of all ranks is priced again for one of them.
    """

    def added(values: Count) -> Array:
        return schedule.prefill(values) - schedule.prefill(1.0) * schedule.decode(values)

    shown = slice(schedule.shown)
    prompts, *others = (group.select(shown) for group in schedule.step.groups)
    of_prefill = np.arange(schedule.shown) < schedule.prefill_passes
    ranks = np.where(of_prefill, float(system.parallelism.ranks), 1.0)
    alone = Step((replace(prompts, batch_size=prompts.batch_size / ranks), *others))
    priced = evaluate(model, system_per_pass(system, schedule, shown), alone)
    whole = np.maximum(added(evaluation.time_s), NO_TIME_S)
    shared = (np.asarray(each.served_sum(is_of_all_ranks))[shown] for each in (evaluation, priced))
    full, one = (np.clip(added(each) / whole, 0.0, 1.0) for each in shared)
    growing = np.maximum(full - one, 0.0) * (1.0 + 1.0 / (system.parallelism.ranks - 1.0))
    return np.minimum(growing, full), np.maximum(full - growing, 0.0)
