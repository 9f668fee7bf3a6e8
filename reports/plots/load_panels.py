"""Parts that plots of simulated loads share: their title, scales of time, and data reduced to what can be seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llmviewer.language.quantity import LATENCIES
from llmviewer.reports import format as fmt
from llmviewer.reports.figure import Limit
from llmviewer.simulation import limits as simulation
from llmviewer.simulation.requests import Timeline
from llmviewer.simulation.result import Simulation

Array = npt.NDArray[np.float64]

#: Points of a curve, more than a page has pixels.
MOST_POINTS = 2000


def title(made: Simulation, *, rate: bool = True) -> str:
    """Returns model, chip, engine and load.  rate: whether to say when requests arrive."""
    one = made.setting
    load = one.workload if rate else one.workload[one.workload.rindex("input ") :]
    return f"{one.model} on {one.hardware}, {one.layout}, {one.engine}: {load}"


def scale_of(values: Array) -> tuple[float, str]:
    """Returns the unit of times that are mostly above it, and its name: s or ms."""
    known = values[~np.isnan(values)]
    return (1.0, "s") if len(known) and np.median(known) >= 1.0 else (1e-3, "ms")


def limits(stated: Sequence[simulation.Limit], metric: str, scale: float, *, upright: bool = False) -> list[Limit]:
    """Returns the limits of a latency, each with its own name.  scale: unit of the axis [s]."""
    return [
        Limit(
            name=f"limit: {LATENCIES[metric].label} {one.statistic} {fmt.duration(one.seconds)}",
            at=one.seconds / scale,
            upright=upright,
        )
        for one in stated
        if one.metric == metric
    ]


def distribution(values: Array) -> tuple[Array, Array]:
    """Returns values in ascending order, and the share of all values up to each: at most MOST_POINTS of them.

    Quantiles are dense at the upper end, where 1 % of the requests decide.
    """
    known = np.sort(values[~np.isnan(values)])
    if len(known) <= MOST_POINTS:
        return known, np.arange(1.0, len(known) + 1.0) / max(len(known), 1)
    shares = np.append(1.0 - np.geomspace(1.0, 1.0 / len(known), MOST_POINTS - 1), 1.0)
    return np.quantile(known, shares), shares


def over_time(lines: tuple[Timeline, ...], name: str, end_s: float) -> tuple[Array, Array, Array]:
    """Returns edges of bins of time [s], and the mean and the largest sum over replicas in each bin.

    name: column of the timelines; where a replica is idle it is zero.  Means keep the area under the curve.
    """
    edges = np.linspace(0.0, end_s, MOST_POINTS // 2 + 1)
    mean, largest = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
    for line in lines:
        values = getattr(line, name)
        area = np.append(0.0, np.cumsum(values * (line.end_s - line.start_s)))
        times = np.append(line.start_s[:1], line.end_s) if len(values) else np.zeros(1)
        mean += np.diff(_area_at(line, area, edges, times)) / np.diff(edges)
        peaks = np.zeros(len(mean))
        first = np.clip(np.searchsorted(edges, line.start_s, "right") - 1, 0, len(mean) - 1)
        last = np.clip(np.searchsorted(edges, line.end_s, "left") - 1, 0, len(mean) - 1)
        np.maximum.at(peaks, first, values)
        np.maximum.at(peaks, last, values)
        largest += np.maximum(peaks, 0.0)
    return edges, mean, np.maximum(largest, mean)


def _area_at(line: Timeline, area: Array, edges: Array, times: Array) -> Array:
    """Returns the area under a column from the start to each edge."""
    if len(times) < 2:
        return np.zeros(len(edges))
    before = np.searchsorted(line.start_s, edges, "right") - 1
    inside = np.clip(edges - line.start_s[before], 0.0, (line.end_s - line.start_s)[before])
    heights = np.diff(area) / np.maximum(line.end_s - line.start_s, 1e-300)
    found: Array = np.where(before < 0, 0.0, area[before] + heights[before] * inside)
    return found
