"""Rules by which our number is compared with that of a document, and the findings that they give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

#: Relative tolerances: of counts, bits and memory; of speedups and shares that a source gives in round numbers.
EXACT, ROUND = 0.05, 0.25


class Finding(Enum):
    """Verdicts on a claim."""

    HOLDS = "holds"
    EXCEEDED = "exceeded"
    BOUND = "allowed by a bound"
    FAILS = "does not hold"
    OPEN = "cannot be judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How our value is compared with a claim's limits.

    meaning: printed on the page.  finding: of our value, the lowest and the highest limit, which are one number for
    most claims.
    """

    meaning: str
    finding: Callable[[float, float, float], Finding]


def _held(holds: Callable[[float, float, float], bool]) -> Callable[[float, float, float], Finding]:
    return lambda ours, low, high: Finding.HOLDS if holds(ours, low, high) else Finding.FAILS


def _best(ours: float, low: float, high: float) -> Finding:
    if ours > high * (1.0 + EXACT):
        return Finding.EXCEEDED
    return Finding.HOLDS if ours >= low * (1.0 - ROUND) else Finding.FAILS


RULES: dict[str, Rule] = {
    "at least": Rule(meaning="not less than the number", finding=_held(lambda ours, low, high: ours >= low)),
    "at most": Rule(meaning="not more than the number", finding=_held(lambda ours, low, high: ours <= high)),
    "below": Rule(meaning="less than the number", finding=_held(lambda ours, low, high: ours < low)),
    "more than": Rule(
        meaning="by over 5 % more than the number, for a gain that is stated without one; less is within our error",
        finding=_held(lambda ours, low, high: ours > low * (1.0 + EXACT)),
    ),
    "equals": Rule(
        meaning="within 5 % of the number: counts, bits, memory, proportions",
        finding=_held(lambda ours, low, high: abs(ours / low - 1.0) <= EXACT),
    ),
    "about": Rule(
        meaning="within 25 % of the number: what a source gives as about, around, almost or nearly",
        finding=_held(lambda ours, low, high: abs(ours / low - 1.0) <= ROUND),
    ),
    "up to": Rule(
        meaning="from 25 % below the number to 5 % above it; what is higher is *exceeded*, which confirms nothing",
        finding=_best,
    ),
    "between": Rule(
        meaning="in the range, whose ends have 5 % of tolerance",
        finding=_held(lambda ours, low, high: low * (1.0 - EXACT) <= ours <= high * (1.0 + EXACT)),
    ),
    "bounded by": Rule(
        meaning="ours is the most that is possible; not less than the number, it is *allowed by a bound*, no more",
        finding=lambda ours, low, high: Finding.BOUND if ours >= low else Finding.FAILS,
    ),
}
