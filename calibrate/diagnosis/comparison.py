"""Measured against predicted time of every operator over recorded passes; all times are means per pass [s]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, nan
from statistics import median

import numpy as np
import numpy.typing as npt

from llmviewer.api.configuration import Configuration
from llmviewer.calibrate.diagnosis.annotation import Stated, Work, step_of
from llmviewer.calibrate.diagnosis.assignment import GENERAL, Assigned, assigned, join_gate_and_up
from llmviewer.calibrate.diagnosis.pricing import PricedOperator, PricedPasses, priced
from llmviewer.calibrate.diagnosis.recording import Kernel, RecordedPass, timeline
from llmviewer.calibrate.diagnosis.slots import (
    COMMUNICATION,
    OTHER_MODELS,
    PREPARE,
    SAMPLING,
    UNKNOWN,
    Slot,
    kind_of,
    slots_of,
)
from llmviewer.calibrate.diagnosis.times import MARKS, SHAPES, Comparison, OperatorTimes, Seen
from llmviewer.core.counts import present
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Step
from llmviewer.hardware.chip import Chip
from llmviewer.ops.gemm import GemmShape

#: Beginning of engines without kernels of their own: an operator is a chain of general kernels.
PLAIN_TORCH = "torch"
#: Operators of PyTorch that multiply by weights, not by other activations.
LINEAR = ("aten::mm", "aten::addmm", "aten::linear", "aten::_scaled_mm")
#: A pass was recorded in part if fewer of its heavy operators have a kernel, as a share of the most in a pass; the page
#: says so if all passes have fewer than this share of them.
COMPLETE = 0.9
#: Times of the median of at least so many passes of the same work beyond which the times of a pass are no sample of it.
OUTLIER, LEAST_ALIKE = 3.0, 3
#: Kinds of kernels that belong to no operator of a model; without an operator they are not a failure to match.
OWN_KINDS = (*GENERAL, "sampling", "norm_part", "rope_part", "quantize", "dequantize", *COMMUNICATION)


@frozen(eq=False)
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
    complete, outliers = _usual([one for one in matched if one.covered >= COMPLETE * best])
    followed = sum(one.recorded.next_s is not None for one in complete)
    found = Comparison(passes=len(complete), phases=Counter(one.phase for one in complete), followed=followed)
    found.notes, found.seen = (*_notes(matched, complete, outliers), *_said(outliers)), seen_in(complete)
    for number in sorted({len(one.step.groups) for one in complete}):
        _add(found, configuration, [one for one in complete if len(one.step.groups) == number])
    join_gate_and_up(found)
    if stated.is_whole:
        said = priced(configuration, [step_of(stated.work(nan), stated)])
        engine = said.within_s.sum() + (said.between_s.sum() if found.followed else 0.0)
        found.said_s = float(sum(one.seconds.sum() for one in said.operators) + engine)
    return found


def _usual(passes: Sequence[MatchedPass]) -> tuple[list[MatchedPass], int]:
    """Passes whose kernels take at most OUTLIER times the median of those of the same work, and how many others."""
    works = [str(one.step) for one in passes]
    taken = [sum(kernel.seconds for kernel in one.recorded.kernels) for one in passes]
    times: dict[str, list[float]] = {}
    for work, seconds in zip(works, taken, strict=True):
        times.setdefault(work, []).append(seconds)
    most = {work: OUTLIER * median(own) if len(own) >= LEAST_ALIKE else inf for work, own in times.items()}
    usual = [one for one, work, seconds in zip(passes, works, taken, strict=True) if seconds <= most[work]]
    return usual, len(passes) - len(usual)


def _said(outliers: int) -> tuple[str, ...]:
    few, verb = ("1 pass", "is") if outliers == 1 else (f"{outliers} passes", "are")
    return (
        f"{few} whose kernels take over {OUTLIER:g} times the median of passes of the same work {verb} left out",
    ) * bool(outliers)


def _notes(matched: Sequence[MatchedPass], complete: Sequence[MatchedPass], outliers: int) -> tuple[str, ...]:
    left, best = len(matched) - len(complete) - outliers, max(one.covered for one in complete)
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


def seen_in(passes: Sequence[MatchedPass]) -> Seen:
    """The work that marks or shapes of the recorded passes state."""
    marked = [one.recorded.work for one in passes if one.recorded.work is not None]
    shaped = any(kernel.shape is not None for one in passes for kernel in one.recorded.kernels)
    phase = Counter(one.phase for one in passes).most_common(1)[0][0]
    tokens = float(np.mean([float(one.step.tokens) for one in passes]))
    if not marked:
        return Seen(by=SHAPES if shaped else "", phase=phase, tokens=tokens)
    parts = [part for work in marked for part in (work.context, work.generation) if part.requests]
    requests = sum(part.requests for part in parts)
    length = sum(part.new if phase == "prefill" else part.keys for part in parts) / requests
    return Seen(by=MARKS, phase=phase, requests=requests / len(marked), length=length, tokens=tokens)


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
        if isinstance(one.row.operator.shape, GemmShape):
            found.own_inputs.add(float(np.max(one.row.operator.shape.k)))
        kind, lender = one.row.operator.kind.value, one.measured_on
        borrowed = "" if lender == chip.name else lender
        new = OperatorTimes(name=one.name, kind=kind, dtype=_dtype(one, chip), borrowed=borrowed)
        own = found.operators.setdefault(one.name, new)
        own.runs += float(np.mean(one.row.operator.runs)) * float(one.row.block.repeats) * len(one.seconds) * share
        own.predicted_s += float(one.seconds.sum()) * share
        own.least_s += one.least_s * share
        own.low_s += float(one.low.sum()) * share
        own.high_s += float(one.high.sum()) * share
    for name in (SAMPLING, OTHER_MODELS):
        found.operators.setdefault(name, OperatorTimes(name=name, kind="engine"))
    found.planned_within_s += float(prices.within_s.sum()) * share
    found.planned_between_s += float(prices.between_s[np.array(followed)].sum()) / max(found.followed, 1)


def _dtype(one: PricedOperator, chip: Chip) -> str:
    operator = one.row.operator
    return chip.compute_dtype(operator.compute) if present(operator.matmul_flops) else ""


def _measure(found: Comparison, one: RecordedPass, names: Sequence[str], beside: npt.NDArray[np.bool_]) -> None:
    """Add the kernels of a pass.  names: operator of each kernel, "" without one; beside: as in `Assigned`."""
    share = 1.0 / found.passes
    times = timeline(one.kernels)
    within = float(times.gaps.sum())
    after = 0.0 if one.next_s is None else max(one.next_s - one.end_s, 0.0) / found.followed
    found.measured_s += (times.busy_s + within) * share + after
    found.within_s += within * share
    found.between_s += after
    found.overlap_s += float(times.hidden.sum()) * share
    found.linked += len({kernel.launch_s for kernel in one.kernels} - {None}) / len(one.kernels) * share
    for kernel, name, alone, wait in zip(one.kernels, names, ~beside, times.gaps, strict=True):
        kind, seconds = kind_of(kernel.name), kernel.seconds * share
        if kernel.shape is not None and kernel.operator in LINEAR:
            found.inputs[kernel.shape[1]] = found.inputs.get(kernel.shape[1], 0.0) + seconds
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
