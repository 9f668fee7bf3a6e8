"""Times of the forward passes of one model: one evaluation, or several pieces where the passes are too many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial

import numpy as np

from llmviewer.analysis.evaluation import Evaluation, evaluate, graph_of_device, system_per_pass
from llmviewer.analysis.power_shares import PowerShares, shares_of, work_of_device
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph
from llmviewer.core.malloc import keep_freed_memory
from llmviewer.core.workload import PASS_COLUMNS, Group, Step
from llmviewer.hardware.chip import Chip
from llmviewer.models.model import Model
from llmviewer.serving.generation import Draft
from llmviewer.serving.schedule import Schedule

#: Figures of each pass that are kept where there are several pieces, beside times.
LATER = ("read_bytes", "at_peak_s", "work_s", "flops", "traffic_bytes")
#: Forward passes whose arrays take kilobytes.
MANY_PASSES = 256
#: Forward passes up to which a recorded program is run: for more, array operations take longer than the Python around
#: them, and those who ask for so many passes ask for memory too, which needs the graph.
MOST_RECORDED_PASSES = 4096


@frozen(slots=False, eq=False)  # no slots: the evaluation is kept
class PassTimes:
    """Times of the passes of a schedule; arrays have one entry per pass.

    evaluated, graph_of_device: compute `evaluation` and `graph` where they are not known yet.  time_s: time of a pass
    through all pipeline stages.  busiest_s, last_s: its time on the slowest and on the last stage.  fill_s: per point,
    time of one token on the other stages, where prefill passes may be cut into chunks of any size; None if they run as
    scheduled.
    later: figures of LATER per pass, where there are several pieces; None where `evaluation` holds all passes.
    """

    schedule: Schedule
    evaluated: Callable[[], Evaluation]
    graph_of_device: Callable[[], Graph]
    time_s: Count
    busiest_s: Count
    last_s: Count
    fill_s: Count | None = None
    later: Mapping[str, Count] | None = None

    @cached_property
    def evaluation(self) -> Evaluation:
        """The passes of the first piece, operator by operator."""
        return self.evaluated()

    @cached_property
    def graph(self) -> Graph:
        """The graph of the passes of the first piece on one device; where nothing is timed yet, it alone is built."""
        return self.evaluation.graph if "evaluation" in self.__dict__ else self.graph_of_device()

    @property
    def read_bytes(self) -> Count:
        """Weights and cache that each pass reads from device memory [byte]."""
        return self.evaluation.read_bytes if self.later is None else self.later["read_bytes"]

    def at_peak_s(self, chip: Chip) -> Count:
        """Time of the products of each pass at the dense peak [s].  chip: with the figures of each pass."""
        return self.evaluation.at_peak_s(chip) if self.later is None else self.later["at_peak_s"]

    def work_s(self, shares: PowerShares) -> Count:
        """Dynamic energy of each pass on the mean device over the board power [s].  shares: of the chip."""
        return work_of_device(self.evaluation, shares) if self.later is None else self.later["work_s"]

    @property
    def flops(self) -> Count:
        """Work of each pass on a device [FLOP]."""
        return self.evaluation.flops if self.later is None else self.later["flops"]

    @property
    def traffic_bytes(self) -> Count:
        """Device-memory traffic of each pass [byte]."""
        return self.evaluation.traffic_bytes if self.later is None else self.later["traffic_bytes"]

    @property
    def is_whole(self) -> bool:
        """Whether `evaluation` holds all passes of the schedule."""
        return self.later is None


def price(model: Model, system: System, plan: Schedule) -> PassTimes:
    """Times of all passes of `plan`, without those of draft models."""
    if len(plan.repeats) > MANY_PASSES:
        keep_freed_memory()
    (piece, step), *later = plan.pieces()
    evaluated = cache(partial(evaluate, model, system_per_pass(system, plan, piece), step))
    recorded: tuple[Count, ...] | None = None
    known: dict[str, Count] | None = None
    if later:
        pieces = [_of_each_pass(step, evaluated(), system_per_pass(system, plan, piece))]
        for piece, step in later:
            here = system_per_pass(system, plan, piece)
            pieces.append(_of_each_pass(step, evaluate(model, here, step), here))
        time_s, busiest_s, last_s, *figures = np.concatenate(pieces, axis=1)
        known = dict(zip(LATER, figures, strict=True))
    else:
        recorded = _recorded_passing_s(model, system, step, evaluated)
        time_s, busiest_s, last_s = recorded or evaluated().passing_s
    return PassTimes(
        schedule=plan,
        evaluated=evaluated,
        graph_of_device=partial(graph_of_device, model, system, plan) if recorded else lambda: evaluated().graph,
        time_s=time_s,
        busiest_s=busiest_s,
        last_s=last_s,
        fill_s=_fill_s(model, system, plan),
        later=known,
    )


def _recorded_passing_s(
    model: Model, system: System, step: Step, evaluated: Callable[[], Evaluation]
) -> tuple[Count, ...] | None:
    """`Evaluation.passing_s` by the recorded program of this model and system; None if there is none yet.

    A program serves steps that differ only in the numbers in the columns of their groups.
    """
    counts = [column for group in step.groups for column in _columns(group)]
    columns = [column for column in counts if isinstance(column, np.ndarray)]
    if any(group.input_len is not None for group in step.groups) or system.over_answer is not None:
        return None
    if np.size(step.tokens) > MOST_RECORDED_PASSES or len(columns) < len(counts) or system.chip.points > 1:
        return None
    key = (model, *((group.kept, group.attended_new_pairs is None) for group in step.groups))
    times = system.programs.run(key, columns)
    if times is None:
        computation = partial(_passing_s_of_columns, model, system, step)
        system.programs.note(key, computation, columns, evaluated().passing_s)
    return times


def _columns(group: Group) -> tuple[Count, ...]:
    """The numbers of a group, one entry per pass."""
    columns = (group.batch_size, group.new_tokens, group.cached_tokens, group.logit_positions)
    return columns if group.attended_new_pairs is None else (*columns, group.attended_new_pairs)


def _passing_s_of_columns(model: Model, system: System, step: Step, columns: Sequence[Count]) -> tuple[Count, ...]:
    """`Evaluation.passing_s` of a step with other columns."""
    left, groups = iter(columns), []
    for group in step.groups:
        names = (*PASS_COLUMNS, "attended_new_pairs")[: len(_columns(group))]
        groups.append(replace(group, **{name: next(left) for name in names}))  # type: ignore[arg-type]
    return evaluate(model, system, Step(tuple(groups))).passing_s


def _fill_s(model: Model, system: System, plan: Schedule) -> Count | None:
    """Time of one token on all pipeline stages but the slowest, per point [s]; None where passes run as scheduled."""
    if not system.any_chunks or system.parallelism.pipeline == 1 or len(plan.step.groups) > 1:
        return None  # the last: steps in which sequences decode run as they are scheduled
    prefill, one = slice(plan.prefill_passes), np.ones(plan.prefill_passes)
    (group,) = plan.step.groups
    token = Step((replace(group.select(prefill), batch_size=one, new_tokens=one),))
    if system.exits is not None:  # a token of a prompt, which exits nowhere
        token = Step((replace(token.groups[0], logit_positions=0.0 * one),))
    time_s, busiest_s, _ = evaluate(model, system_per_pass(system, plan, prefill), token).passing_s
    return plan.prefill_max(time_s - busiest_s)


def _of_each_pass(step: Step, priced: Evaluation, system: System) -> Array:
    """Time, that of the slowest and the last pipeline stage, and figures of LATER, a column per pass.

    A draft without a cache has the same figures in all passes, so scalars are broadcast.
    """
    work = work_of_device(priced, shares_of(system.chip, system.efficiency))
    peak_s = priced.at_peak_s(system.chip)
    figures = (*priced.passing_s, priced.read_bytes, peak_s, work, priced.flops, priced.traffic_bytes)
    return np.stack(np.broadcast_arrays(*figures, step.tokens)[:-1])


def rounds_of_microbatches(target: PassTimes, drafts: Sequence[tuple[Draft, PassTimes]], in_flight: Count) -> Count:
    """Time of a round of all micro-batches in a pipeline, per pass [s].

    A micro-batch passes through all stages, then through its draft passes on the last one; the round ends when a
    micro-batch has done so and the busiest stage has worked on all of them.  drafts: with the times of a draft pass; a
    model that drafts for itself does so on all stages.
    """
    through, busiest, last = target.time_s, target.busiest_s, target.last_s
    for draft, one in drafts:
        through = through + draft.passes * one.time_s
        busiest = busiest + draft.passes * (one.busiest_s if draft.same_weights else 0.0)
        last = last + draft.passes * one.last_s
    return np.maximum(through, in_flight * np.maximum(busiest, last))
