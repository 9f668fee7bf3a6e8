"""The best configuration of another kind beside a winner, and why one costs more per hour than another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, log
from typing import Any

from llmviewer.core.frozen import frozen
from llmviewer.planning.choices import Choice, order_of
from llmviewer.planning.floors import ChipScreen, points_of, simulated
from llmviewer.planning.options import Question
from llmviewer.planning.screen import Candidate
from llmviewer.planning.space import has_few_bits

#: Candidates that are simulated where none of the kind was.
MOST_TRIED = 2


@frozen
class Against:
    """The best configuration of the other kind.

    ratio: its objective over the winner's, devices where a price is missing; None where none holds.
    """

    ratio: float | None = None
    other: Choice | None = None


def against(asked: Question, screens: Sequence[ChipScreen], held: Sequence[Choice], best: Choice) -> dict[str, Against]:
    """Kind of the other configuration -> it: `aggregated` beside two pools, `wider` beside weights of few bits.

    held: configurations that hold in simulation, best first; where none of them is of the kind, the first candidates
    on the winner's chips are simulated.
    """
    found: dict[str, Against] = {}
    if len(best.parts) == 2:
        chips = {part.screened.hardware for part, _ in best.parts}
        one_pool = [one for one in held if len(one.parts) == 1 and one.hardware in chips]
        found["aggregated"] = _compared(asked, best, one_pool or _tried(asked, screens, best, lambda one: True))
    if best.has_few_bits:
        wide = [one for one in held if not one.has_few_bits]
        found["wider"] = _compared(asked, best, wide or _tried(asked, screens, best, _is_wide))
    return found


def _is_wide(one: Candidate) -> bool:
    return not has_few_bits(str(one.words.get("quantization", "none")))


def _tried(
    asked: Question, screens: Sequence[ChipScreen], best: Choice, wanted: Callable[[Candidate], bool]
) -> list[Choice]:
    """Configurations of one pool on the winner's chips, simulated here, best first."""
    chips = {part.screened.hardware for part, _ in best.parts}
    structures = [each for one in screens if one.hardware in chips for each in one.structures]
    points = [one for each in structures for one in points_of(asked, each)[:1] if wanted(one)]
    points.sort(key=lambda one: one.order(asked.objective, asked.workload))
    choices = simulated(asked, best.hardware, points[:MOST_TRIED]).choices
    return sorted(choices, key=order_of(asked.objective))


def _compared(asked: Question, best: Choice, others: Sequence[Choice]) -> Against:
    if not others:
        return Against()
    other = others[0]
    ours, theirs = (one.order(asked.objective)[0] for one in (best, other))
    if not (isfinite(ours) and isfinite(theirs) and ours > 0.0):
        ours, theirs = float(best.devices), float(other.devices)
    return Against(ratio=theirs / ours, other=other)


def waterfall(best: Choice, other: Choice) -> dict[str, Any]:
    """The difference between two configurations as the object of `llmviewer why`.

    Dollars per hour (devices, where a price is missing or 0) are a product: price of a device x devices that the rate
    would keep busy to the limits x what whole and spare replicas add.  Each factor gets the logarithmic mean of both
    totals times the logarithm of its ratio, so that the amounts sum to the difference: Ang, Energy Policy 32(9), 2004
    (LMDI).
    """
    priced = bool(best.usd_per_hour and other.usd_per_hour)  # a price of 0 has no logarithm
    first, second = _factors(best, priced=priced), _factors(other, priced=priced)
    a, b = _total(first), _total(second)
    mean = a if abs(b - a) < 1e-12 * a else (b - a) / log(b / a)
    factors = [
        {"name": name, "a": first[name], "b": second[name], "amount": mean * log(second[name] / first[name])}
        for name in first
    ]
    metric = "usd_per_hour" if priced else "devices"
    return {"schema": "llmviewer.why/1", "metric": metric, "a": a, "b": b, "difference": b - a, "factors": factors}


def _factors(one: Choice, *, priced: bool) -> dict[str, float]:
    """Factors of a configuration's cost."""
    rate = one.tokens_per_s / one.output_len
    exact = rate * one.devices_needed / one.highest_rate
    price = {"price of a device": one.usd_per_hour / one.devices} if priced and one.usd_per_hour else {}
    return {**price, "devices at full load": exact, "whole replicas and spare ones": one.devices / exact}


def _total(factors: dict[str, float]) -> float:
    product = 1.0
    for value in factors.values():
        product *= value
    return product
