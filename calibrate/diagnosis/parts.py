"""The difference between measured and predicted time, split into parts that add up to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan

from llmviewer.calibrate.diagnosis.times import BESIDE, MARKS, Comparison, OperatorTimes
from llmviewer.calibrate.diagnosis.wording import told
from llmviewer.core.frozen import frozen

#: Names of parts that are not operators.
FUSED = "operators without a kernel of their own"
BETWEEN, WITHIN = "gaps between passes", "gaps within passes"
UNPLANNED, UNMATCHED, OVERLAP, OTHER_WORK = "kernels nobody predicted", "unmatched kernels", "overlap", "different work"
#: Kinds of parts.
OPERATOR, COMMUNICATION, ENGINE, REST = "operator", "communication", "engine", "rest"
#: Least share of the measured time at which a part without an interval counts as outside of it.
NOTICEABLE = 0.02
#: Share of the idle time before one operator's kernels at which they are named.
MOSTLY = 0.5
#: Phase of a pass -> what the length of its requests counts.
LENGTHS = {"prefill": "new tokens", "decode": "keys", "mixed": "tokens"}


@frozen
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
    evidence = f"the device is idle for {told(found.within_s)} between kernels of a pass{_place(found)}"
    evidence += f", {told(found.planned_within_s)} predicted"
    yield _part(found, WITHIN, found.within_s - found.planned_within_s, evidence)
    evidence = f"{told(found.between_s)} from the last kernel of a pass to the next pass"
    evidence += f", {told(found.planned_between_s)} predicted"
    yield _part(found, BETWEEN, found.between_s - found.planned_between_s, evidence, kind=ENGINE)
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
        yield _part(found, OTHER_WORK, found.work_s - found.said_s, f"{recorded_work(found)}; the user states another")


def recorded_work(found: Comparison) -> str:
    """Origin and amount of the work that is stated for the recorded passes."""
    seen = found.seen
    if seen.by == MARKS:
        text = f"the marks state {seen.requests:,.4g} requests in a {seen.phase} pass"
        return text if isnan(seen.length) else f"{text}, of {seen.length:,.6g} {LENGTHS[seen.phase]} each"
    return f"the shapes of matrix products have {seen.tokens:,.6g} tokens in a pass"


def longest_wait(found: Comparison) -> OperatorTimes | None:
    """The operator before whose kernels the device is idle for most of the time within passes, None if it is spread."""
    longest = max(found.operators.values(), key=lambda one: one.wait_s, default=None)
    return longest if longest is not None and longest.wait_s > MOSTLY * found.within_s else None


def _place(found: Comparison) -> str:
    longest = longest_wait(found)
    return "" if longest is None else f", {told(longest.wait_s)} of it before those of {longest.name}"


def _part(found: Comparison, name: str, amount: float, evidence: str, kind: str = REST) -> Part:
    outside = abs(amount) > NOTICEABLE * found.measured_s
    return Part(name=name, kind=kind, amount_s=amount, outside=outside, evidence=evidence)


def _names(one: OperatorTimes) -> str:
    """The most frequent kernels of an operator."""
    return ", ".join(name[:60] for name in list(one.longest)[:2]) or "none seen"


def _longest(times: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda item: -item[1])
