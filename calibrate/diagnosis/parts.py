"""The difference between measured and predicted time, split into parts that add up to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llmviewer.calibrate.diagnosis.comparison import BESIDE, Comparison, OperatorTimes

#: Names of parts that are not operators.
FUSED = "operators without a kernel of their own"
BETWEEN, WITHIN = "gaps between passes", "gaps within passes"
UNPLANNED, UNMATCHED, OVERLAP, OTHER_WORK = "kernels nobody predicted", "unmatched kernels", "overlap", "different work"
#: Kinds of parts.
OPERATOR, COMMUNICATION, ENGINE, REST = "operator", "communication", "engine", "rest"
#: Units of times in evidence.
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
#: Least share of the measured time at which a part without an interval counts as outside of it.
NOTICEABLE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Seconds per pass by which the measured time is longer than predicted, with what was seen.

    kind: OPERATOR, COMMUNICATION, ENGINE or REST.  outside: the measured time lies outside of the 80 % interval, or the
    part has no interval and is noticeable.
    """

    name: str
    kind: str
    amount_s: float
    outside: bool
    evidence: str


def parts_of(found: Comparison) -> list[Part]:
    """Parts of measured − predicted, which they add up to, largest first."""
    parts = [*_operators(found), *_engine(found), *_rest(found)]
    return sorted((part for part in parts if part.amount_s), key=lambda part: -abs(part.amount_s))


def _operators(found: Comparison) -> Iterator[Part]:
    for one in found.operators.values():
        if one.name in BESIDE or not one.kernels:
            continue
        kind = COMMUNICATION if one.kind == "collective" else OPERATOR
        interval = f"80 % interval {told(one.low_s)} to {told(one.high_s)}"
        evidence = f"{told(one.measured_s)} measured, {told(one.predicted_s)} predicted, {interval}; {_names(one)}"
        amount = one.measured_s - one.predicted_s
        yield Part(name=one.name, kind=kind, amount_s=amount, outside=not is_inside(one), evidence=evidence)
    fused = [one for one in found.operators.values() if not one.kernels and one.predicted_s]
    if fused:
        names = ", ".join(one.name for one in fused)
        amount = -sum(one.predicted_s for one in fused)
        yield _part(found, FUSED, amount, f"{names}: their work runs in the kernels of other operators, or not at all")


def is_inside(one: OperatorTimes) -> bool:
    """Whether the measured time of an operator lies in its 80 % interval."""
    return one.low_s <= one.measured_s <= one.high_s


def _engine(found: Comparison) -> Iterator[Part]:
    within = found.gap_s - found.between_s
    yield _part(found, WITHIN, within, f"the device is idle for {told(within)} between kernels of a pass")
    evidence = (
        f"{told(found.between_s)} from the last kernel of a pass to the next pass, {told(found.engine_s)} predicted"
    )
    yield _part(found, BETWEEN, found.between_s - found.engine_s, evidence, kind=ENGINE)
    for name in BESIDE:
        one = found.operators[name]
        yield _part(found, name, one.measured_s, f"kernels of the engine beside the model; {_names(one)}", kind=ENGINE)


def _rest(found: Comparison) -> Iterator[Part]:
    planned = ", ".join(f"{kind} {told(seconds)}" for kind, seconds in _longest(found.unplanned))
    yield _part(found, UNPLANNED, sum(found.unplanned.values()), planned)
    names = "; ".join(f"{told(seconds)} {name[:60]}" for name, seconds in _longest(found.unmatched)[:3])
    yield _part(found, UNMATCHED, found.unmatched_s, names)
    yield _part(found, OVERLAP, -found.overlap_s, "kernels of several streams that run at the same time")
    if found.said_s is not None:
        amount = found.work_s - found.said_s
        yield _part(found, OTHER_WORK, amount, "the marks of the recording state other requests or lengths than given")


def _part(found: Comparison, name: str, amount: float, evidence: str, kind: str = REST) -> Part:
    outside = abs(amount) > NOTICEABLE * found.measured_s
    return Part(name=name, kind=kind, amount_s=amount, outside=outside, evidence=evidence)


def _names(one: OperatorTimes) -> str:
    """The most frequent kernels of an operator."""
    return ", ".join(name[:60] for name in list(one.longest)[:2]) or "none seen"


def told(seconds: float) -> str:
    """A time with its unit, for evidence."""
    unit, name = next(((unit, name) for unit, name in UNITS if abs(seconds) >= unit), UNITS[-1])
    return f"{seconds / unit:.3g} {name}"


def _longest(times: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda item: -item[1])
