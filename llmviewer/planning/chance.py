"""Probability that a limit holds, from the errors of the calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import NormalDist
from typing import TypeAlias

from llmviewer.simulation.limits import Limit

NORMAL = NormalDist()
#: Level of an interval -> quantiles of its bounds.
QUANTILES: Mapping[str, tuple[float, float]] = {"95": (0.025, 0.975), "80": (0.10, 0.90)}
#: Bounds over a value by level of an interval.
Ratios: TypeAlias = Mapping[str, Sequence[float]]
#: Equally likely values by which a probability over two errors is summed.
STEPS = 200
#: Least relative distance between two bounds, below which an interval is a point.
POINT = 1e-9


def probability_within(limit: float, value: float, ratios: Ratios) -> float:
    """The probability that a latency is within its limit.

    limit, value: the limit and the prediction, in one unit.  ratios: bounds over value by level, 80 and 95.  Between
    the bounds the logarithm of the latency is normal piece by piece, beyond them as in the outer pieces.
    """
    points = _quantile_points(ratios)
    at = log(limit / value)
    if len(points) < 2 or points[-1][0] - points[0][0] < POINT:
        return float(at >= 0.0)
    index = next((i for i in range(1, len(points) - 1) if at <= points[i][0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return NORMAL.cdf(y0 + (y1 - y0) * (at - x0) / max(x1 - x0, POINT))


def _quantile_points(ratios: Ratios) -> list[tuple[float, float]]:
    """Logarithm of each bound over the value, and its quantile in standard deviations, in order."""
    known = sorted(
        (ratio, quantile)
        for level, bounds in ratios.items()
        for ratio, quantile in zip(bounds, QUANTILES[level], strict=True)
    )
    return [(log(ratio), NORMAL.inv_cdf(quantile)) for ratio, quantile in known if ratio > 0.0]


def ratio_at(quantile: float, ratios: Ratios) -> float:
    """The ratio to the value at a quantile, by the distribution of `probability_within`."""
    points = _quantile_points(ratios)
    if len(points) < 2:
        return 1.0
    at = NORMAL.inv_cdf(quantile)
    index = next((i for i in range(1, len(points) - 1) if at <= points[i][1]), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return exp(x0 + (x1 - x0) * (at - y0) / (y1 - y0))


def probability_below(one: tuple[float, Ratios], other: tuple[float, Ratios]) -> float:
    """The probability that a quantity is less than another one; each is a value and its bounds over it by level.

    Errors of the two are taken as independent: the mean, over equally likely values of the second, of the probability
    that the first is less.
    """
    (value, ratios), (other_value, other_ratios) = one, other
    quantiles = ((step + 0.5) / STEPS for step in range(STEPS))
    limits = (other_value * ratio_at(quantile, other_ratios) for quantile in quantiles)
    return sum(probability_within(limit, value, ratios) for limit in limits) / STEPS


def chance_of(
    limits: Sequence[Limit],
    latencies: Mapping[str, Mapping[str, float | None]],
    ratios: Mapping[str, Ratios],
) -> float | None:
    """The least probability of any limit, as errors of all times come from the same kernels; None if none is known.

    latencies: metric -> statistic -> seconds.  ratios: metric -> bounds over value by level.
    """
    found = [
        probability_within(one.seconds, value, ratios[one.metric])
        for one in limits
        if one.metric in ratios and (value := latencies[one.metric][one.statistic])
    ]
    return min(found, default=None)
