"""Predicted time of every operator of recorded forward passes, and of the engine between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmviewer.analysis.evaluation import Evaluation, TimedOperator, evaluate
from llmviewer.api.configuration import Configuration
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Group, Step
from llmviewer.ops.gemm import EXPERT_PREFIX
from llmviewer.result import interval
from llmviewer.timing.calibrated import Calibrated
from llmviewer.timing.engine_work import FACTORS, TERMS_OUTSIDE_LAYERS

#: Term of an engine that replaces kernels -> kinds of their operators.
OWN_KERNELS: dict[str, tuple[Kind, ...]] = {
    **{f"own {group} kernels": kinds for group, kinds in FACTORS.items()},
    "own matrix-vector kernels": (Kind.GEMM,),
    "unpacking weights": (Kind.GEMM,),
}
FIELDS = ("batch_size", "new_tokens", "cached_tokens", "logit_positions", "attended_new_pairs")
LOW80, HIGH80 = interval.LEVELS["80"]


@frozen(eq=False)
class PricedOperator:
    """Times of one operator in every pass [s], over all its layers, with the bounds of its 80 % interval.

    measured_on: chip on which its kernels were measured, "" for a bound of the data sheet.
    """

    name: str
    measured_on: str
    row: TimedOperator
    seconds: Array
    low: Array
    high: Array

    @property
    def least_s(self) -> float:
        """Time of all passes on the roofline [s], of products with weights other than routed experts'; else 0."""
        operator = self.row.operator
        if operator.kind is not Kind.GEMM or operator.name.startswith(EXPERT_PREFIX):
            return 0.0
        return float(_spread(self.row.ideal.time_s, len(self.seconds)).sum()) * self.row.block.repeats


@frozen(eq=False)
class PricedPasses:
    """Passes of one kind, all priced at once.

    within_s, between_s: time without kernels that the engine adds between the kernels of a pass, such as launches one
    by one, and from one pass to the next [s].
    """

    evaluation: Evaluation
    operators: tuple[PricedOperator, ...]
    within_s: Array
    between_s: Array


def priced(configuration: Configuration, steps: Sequence[Step]) -> PricedPasses:
    """The times of passes with equally many groups.  Raises UserError for a system that this cannot price."""
    system = configuration.system
    if system.parallelism.pipeline > 1 or system.copies_beside:
        raise UserError("diagnose compares the kernels of one device; pipelines and offloading are not compared")
    if len(steps[0].groups) == 0:
        raise UserError("a recorded pass has no requests")
    step = Step(tuple(_stacked([one.groups[number] for one in steps]) for number in range(len(steps[0].groups))))
    evaluation = evaluate(configuration.model, system, step)
    calibration = system.efficiency if isinstance(system.efficiency, Calibrated) else None
    ratios = interval.bound_ratios(evaluation, calibration, system.chip) if calibration else {}
    count = len(steps)
    operators = tuple(
        _operator(row, ratios.get(id(row)), count, calibration.primary_fit(row.operator).chip if calibration else "")
        for row in evaluation.rows
    )
    terms = [(name, _spread(seconds, count)) for name, seconds in evaluation.served]
    for name, seconds in terms:
        operators = _with_own_kernels(operators, OWN_KERNELS.get(name, ()), seconds)
    none = np.zeros(count)
    return PricedPasses(
        evaluation=evaluation,
        operators=operators,
        within_s=sum((own for name, own in terms if name not in (*OWN_KERNELS, *TERMS_OUTSIDE_LAYERS)), none),
        between_s=sum((own for name, own in terms if name in TERMS_OUTSIDE_LAYERS), none),
    )


def _with_own_kernels(
    operators: tuple[PricedOperator, ...], kinds: tuple[Kind, ...], added_s: Array
) -> tuple[PricedOperator, ...]:
    """The operators with time that an engine's own kernels take beside those in profiles, in proportion to theirs."""
    own = [one.row.operator.kind in kinds and one.row.operator.is_kernel for one in operators]
    seconds = sum((one.seconds for one, chosen in zip(operators, own, strict=True) if chosen), np.zeros(len(added_s)))
    factor = 1.0 + np.divide(added_s, seconds, out=np.zeros_like(added_s), where=seconds > 0.0)
    return tuple(
        replace(one, seconds=one.seconds * factor, low=one.low * factor, high=one.high * factor) if chosen else one
        for one, chosen in zip(operators, own, strict=True)
    )


def _stacked(groups: Sequence[Group]) -> Group:
    """One group whose columns are the values of all passes."""
    columns = {name: np.array([float(getattr(group, name)) for group in groups]) for name in FIELDS}
    return Group(**columns)  # type: ignore[arg-type]


def _operator(row: TimedOperator, ratios: Array | None, count: int, chip: str) -> PricedOperator:
    seconds = _spread(row.timing.time_s, count) * float(row.block.repeats)
    bounds = np.ones((4, count)) if ratios is None else np.array([_spread(ratio, count) for ratio in ratios])
    return PricedOperator(
        name=row.operator.name,
        measured_on=chip,
        row=row,
        seconds=seconds,
        low=seconds * bounds[LOW80],
        high=seconds * bounds[HIGH80],
    )


def _spread(values: object, count: int) -> Array:
    """The values of all passes, of a number or an array."""
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (count,)).copy()
