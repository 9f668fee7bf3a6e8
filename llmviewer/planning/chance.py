"""Probability that a limit holds, from the errors of the calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from statistics import NormalDist

from llmviewer.simulation.limits import Limit

NORMAL = NormalDist()
#: Level of an interval -> quantiles of its bounds.
QUANTILES: Mapping[str, tuple[float, float]] = {"95": (0.025, 0.975), "80": (0.10, 0.90)}
#: Least relative distance between two bounds, below which an interval is a point.
POINT = 1e-9


def probability_within(limit: float, value: float, ratios: Mapping[str, Sequence[float]]) -> float:
    """The probability that a latency is within its limit.

    limit, value: the limit and the prediction, in one unit.  ratios: bounds over value by level, 80 and 95.  Between
    the bounds the logarithm of the latency is normal piece by piece, beyond them as in the outer pieces.
    """
    known = sorted(
        (ratio, quantile)
        for level, bounds in ratios.items()
        for ratio, quantile in zip(bounds, QUANTILES[level], strict=True)
    )
    points = [(log(ratio), NORMAL.inv_cdf(quantile)) for ratio, quantile in known if ratio > 0.0]
    at = log(limit / value)
    if len(points) < 2 or points[-1][0] - points[0][0] < POINT:
        return float(at >= 0.0)
    index = next((i for i in range(1, len(points) - 1) if at <= points[i][0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return NORMAL.cdf(y0 + (y1 - y0) * (at - x0) / max(x1 - x0, POINT))


def chance_of(
    limits: Sequence[Limit],
    latencies: Mapping[str, Mapping[str, float | None]],
    ratios: Mapping[str, Mapping[str, Sequence[float]]],
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
