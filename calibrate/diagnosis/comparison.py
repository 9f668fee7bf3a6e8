"""Measured against predicted time of every operator over recorded passes; all times are means per pass [s]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan

import numpy as np
import numpy.typing as npt

from llmviewer.api.configuration import Configuration
from llmviewer.calibrate.diagnosis.annotation import Stated, Work, step_of
from llmviewer.calibrate.diagnosis.assignment import GENERAL, Assigned, assigned
from llmviewer.calibrate.diagnosis.patterns import UNKNOWN, kind_of
from llmviewer.calibrate.diagnosis.pricing import PricedOperator, PricedPasses, priced
from llmviewer.calibrate.diagnosis.recording import Kernel
from llmviewer.calibrate.diagnosis.slots import OTHER_MODELS, PREPARE, SAMPLING, Slot, slots_of
from llmviewer.calibrate.diagnosis.steps import RecordedPass
from llmviewer.calibrate.diagnosis.timeline import timeline
from llmviewer.core.counts import present
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Step
from llmviewer.hardware.chip import Chip

#: Work that engines do beside the model, which no operator predicts.
BESIDE = (PREPARE, SAMPLING, OTHER_MODELS)
#: Beginning of engines without kernels of their own: an operator is a chain of general kernels.
PLAIN_TORCH = "torch"
#: A pass was recorded in part if fewer of its heavy operators have a kernel, as a share of the most in a pass; the page
#: says so if all passes have fewer than this share of them.
COMPLETE = 0.9
#: Kinds of kernels that belong to no operator of a model; without an operator they are not a failure to match.
OWN_KINDS = (*GENERAL, "sampling", "norm_part", "rope_part", "quantize", "dequantize")


@dataclass(slots=True, kw_only=True, eq=False)
class OperatorTimes:
    """Times of one operator over all layers.  wait_s: idle time before its kernels.

    kernels: name -> number of runs; kernel_s: name -> seconds.

    kind: of the operator.  dtype: in which its matrix units compute, "" without them.  borrowed: chip on which the
    kernels of the prediction were measured, "" if it is this one.
    """

    name: str
    kind: str
    dtype: str = ""
    borrowed: str = ""
    predicted_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0
    measured_s: float = 0.0
    wait_s: float = 0.0
    kernels: Counter[str] = field(default_factory=Counter)
    kernel_s: dict[str, float] = field(default_factory=dict)

    @property
    def longest(self) -> dict[str, int]:
        """Number of runs by kernel, those with the most time first."""
        return {name: self.kernels[name] for name in sorted(self.kernels, key=lambda one: -self.kernel_s[one])}


@dataclass(slots=True, kw_only=True, eq=False)
class Comparison:
    """Times of recorded passes, means per pass [s].

    operators: name -> times, in the order of the graph; the places BESIDE have no prediction.  unplanned: kind ->
    seconds of kernels of engines' own kinds without an operator; unmatched: kernel name -> seconds of the others.
    engine_s: predicted for the passes after which another one follows.  gap_s: idle device.  overlap_s: seconds of
    kernels during which another one runs.  runs: (kernel, kind, operator) -> number and seconds.  notes: what the
    recorded passes lack, in sentences for the user.
    """

    passes: int
    phases: Counter[str]
    measured_s: float = 0.0
    engine_s: float = 0.0
    said_s: float | None = None
    gap_s: float = 0.0
    between_s: float = 0.0
    overlap_s: float = 0.0
    linked: float = 0.0
    operators: dict[str, OperatorTimes] = field(default_factory=dict)
    unplanned: dict[str, float] = field(default_factory=dict)
    unmatched: dict[str, float] = field(default_factory=dict)
    runs: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def predicted_s(self) -> float:
        """Predicted time of the kernels and of the engine; of the work that the user states, if that is another."""
        return (self.work_s if self.said_s is None else self.said_s) + self.engine_s

    @property
    def work_s(self) -> float:
        """Predicted time of the kernels of the recorded work."""
        return sum(one.predicted_s for one in self.operators.values())

    @property
    def kernel_s(self) -> float:
        """Seconds of all kernels."""
        return sum(seconds for _, seconds in self.runs.values())

    @property
    def unmatched_s(self) -> float:
        """Seconds of kernels that could not be matched."""
        return sum(self.unmatched.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatchedPass:
    """A recorded pass with its work, and the operators of its kernels as in `Assigned`.  covered: share of operators
    that have a kernel."""

    recorded: RecordedPass
    phase: str
    step: Step
    operators: tuple[str, ...]
    beside: npt.NDArray[np.bool_]
    covered: float


def compared(configuration: Configuration, passes: Sequence[RecordedPass], stated: Stated) -> Comparison:
    """The comparison of the whole passes of a recording.  Raises UserError if there is none or its work is unknown."""
    whole = [one for one in passes if one.whole]
    if not whole:
        raise UserError("the recording has no whole forward pass: record several, after a warm-up")
    matched = [one for group in _matched(configuration, whole, stated) for one in group]
    best = max(one.covered for one in matched)
    complete = [one for one in matched if one.covered >= COMPLETE * best]
    found = Comparison(passes=len(complete), phases=Counter(one.phase for one in complete))
    found.notes = _notes(matched, complete)
    for number in sorted({len(one.step.groups) for one in complete}):
        _add(found, configuration, [one for one in complete if len(one.step.groups) == number])
    if stated.is_whole:
        said = priced(configuration, [step_of(stated.work(nan), stated)])
        found.said_s = float(sum(one.seconds.sum() for one in said.operators))
    return found


def _notes(matched: Sequence[MatchedPass], complete: Sequence[MatchedPass]) -> tuple[str, ...]:
    left, best = len(matched) - len(complete), max(one.covered for one in complete)
    if best < COMPLETE:
        reason = "the recording is cut off in a pass, or model and options are not those of the run"
        return (f"only {best:.0%} of the matrix products and attention of a pass have a kernel: {reason}",)
    many = f"{left} passes that were recorded in part are left out"
    return ("1 pass that was recorded in part is left out" if left == 1 else many,) if left else ()


def _matched(
    configuration: Configuration, passes: Sequence[RecordedPass], stated: Stated
) -> Iterator[list[MatchedPass]]:
    """The passes of every recorded span: one if a mark bounds it, else as many as the order of kernels tells."""
    works = [_work(one, stated) for one in passes]
    steps = [step_of(work, stated) for work in works]
    slots: dict[int, list[Slot]] = {}
    cache: dict[tuple[tuple[str, int], ...], Assigned] = {}
    for one, work, step in zip(passes, works, steps, strict=True):
        groups = len(step.groups)
        if groups not in slots:
            slots[groups] = slots_of(priced(configuration, [step]).evaluation.graph)
        key = tuple((kernel.name, kernel.stream) for kernel in one.kernels)
        if key not in cache:
            cache[key] = assigned(one.kernels, slots[groups], most=inf if one.work is None else 1.0)
        yield list(_split(one, work, step, cache[key]))


def _split(one: RecordedPass, work: Work, step: Step, found: Assigned) -> Iterator[MatchedPass]:
    """The passes among the kernels of a span; kernels of a pass without heavy operators go to the nearest other."""
    numbers = sorted({number for number in found.passes.tolist() if found.covered.get(number, 1.0)}) or [0]
    owners = np.array(numbers)[np.abs(found.passes[:, None] - np.array(numbers)).argmin(axis=1)]
    spans = [np.flatnonzero(owners == number).tolist() for number in numbers]
    starts = [one.kernels[span[0]].start_s for span in spans[1:]]
    for number, span, next_s in zip(numbers, spans, [*starts, one.next_s], strict=True):
        yield MatchedPass(
            recorded=replace(one, kernels=tuple(one.kernels[at] for at in span), next_s=next_s),
            phase=work.phase,
            step=step,
            operators=tuple(found.operators[at] for at in span),
            beside=found.beside[span],
            covered=found.covered.get(number, 1.0),
        )


def _work(one: RecordedPass, stated: Stated) -> Work:
    """The work of a pass, from its mark, or from what the user states and the shapes of matrix products."""
    if one.work is not None:
        return one.work
    rows = Counter(kernel.shape[0] for kernel in one.kernels if kernel.shape is not None)
    return stated.work(rows.most_common(1)[0][0] if rows else nan)


def _add(found: Comparison, configuration: Configuration, passes: Sequence[MatchedPass]) -> None:
    """Add passes with equally many groups to the comparison."""
    prices = priced(configuration, [one.step for one in passes])
    _predict(found, prices, configuration.system.chip, [one.recorded.next_s is not None for one in passes])
    chains = configuration.options.engine.startswith(PLAIN_TORCH)
    for one in passes:
        _measure(found, one.recorded, one.operators, one.beside & ~np.array(chains))


def _predict(found: Comparison, prices: PricedPasses, chip: Chip, followed: Sequence[bool]) -> None:
    share = 1.0 / found.passes
    found.operators.setdefault(PREPARE, OperatorTimes(name=PREPARE, kind="engine"))
    for one in prices.operators:
        kind, lender = one.row.operator.kind.value, one.measured_on
        borrowed = "" if lender == chip.name else lender
        new = OperatorTimes(name=one.name, kind=kind, dtype=_dtype(one, chip), borrowed=borrowed)
        own = found.operators.setdefault(one.name, new)
        own.predicted_s += float(one.seconds.sum()) * share
        own.low_s += float(one.low.sum()) * share
        own.high_s += float(one.high.sum()) * share
    for name in (SAMPLING, OTHER_MODELS):
        found.operators.setdefault(name, OperatorTimes(name=name, kind="engine"))
    found.engine_s += float(prices.engine_s[np.array(followed)].sum()) * share


def _dtype(one: PricedOperator, chip: Chip) -> str:
    operator = one.row.operator
    return chip.compute_dtype(operator.compute) if present(operator.matmul_flops) else ""


def _measure(found: Comparison, one: RecordedPass, names: Sequence[str], beside: npt.NDArray[np.bool_]) -> None:
    """Add the kernels of a pass.  names: operator of each kernel, "" without one; beside: as in `Assigned`."""
    share = 1.0 / found.passes
    times = timeline(one.kernels)
    after = 0.0 if one.next_s is None else max(one.next_s - one.end_s, 0.0)
    found.measured_s += (times.busy_s + float(times.gaps.sum()) + after) * share
    found.gap_s += (float(times.gaps.sum()) + after) * share
    found.between_s += after * share
    found.overlap_s += float(times.hidden.sum()) * share
    found.linked += len({kernel.launch_s for kernel in one.kernels} - {None}) / len(one.kernels) * share
    for kernel, name, alone, wait in zip(one.kernels, names, ~beside, times.gaps, strict=True):
        kind, seconds = kind_of(kernel.name), kernel.seconds * share
        run = found.runs.setdefault((kernel.name, kind, name), [0.0, 0.0])
        run[0] += share
        run[1] += seconds
        if alone:
            _count(found, kernel, name, float(wait) * share)
        else:
            _add_time(found.unplanned, f"{kind} beside {name}", seconds)


def _count(found: Comparison, kernel: Kernel, name: str, wait_s: float) -> None:
    kind, seconds = kind_of(kernel.name), kernel.seconds / found.passes
    if name:
        own = found.operators[name]
        own.measured_s += seconds
        own.wait_s += wait_s
        own.kernels[kernel.name] += 1
        _add_time(own.kernel_s, kernel.name, seconds)
    elif kind in OWN_KINDS:
        _add_time(found.unplanned, kind, seconds)
    else:
        _add_time(found.unmatched, kernel.name if kind == UNKNOWN else f"{kind}: {kernel.name}", seconds)


def _add_time(times: dict[str, float], name: str, seconds: float) -> None:
    times[name] = times.get(name, 0.0) + seconds
