"""Latencies near the capacity of a server: the same requests again, as slow and as fast as the calibration allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.simulation.pace import MeanRequest, capacity
from llmviewer.simulation.requests import Requests
from llmviewer.simulation.result import Edges, Simulation
from llmviewer.simulation.run import whole_run

#: Share of its capacity that a slow server uses, from which on queues no longer grow in proportion to service times.
NEAR = 0.8


def edge_ratios(made: Simulation) -> Edges:
    """Bounds over value of the latencies of requests that arrive at times of their own; empty far below the capacity.

    All times of the server are r times as long, by the error of the end-to-end latency: the unit of time apart, that is
    the server as it is whose requests come r times as fast.  Percentiles are those of the first replication.
    """
    errors = made.ratios.get("e2e_s", {})
    if not errors or not made.traffic.is_open or not made.answers or not made.outcomes[0].completed:
        return {}
    rate, records = made.mean_load("requests_per_s"), made.records
    most = capacity(MeanRequest.of(records, records.refused == 0, made.fleet), made.fleet)
    if rate * max(high for _, high in errors.values()) < NEAR * most and not made.saturated:
        return {}
    own = replace(made, outcomes=made.outcomes[:1]).latencies()
    found: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
    for level, (low, high) in errors.items():
        ends = [(ratio, _slower(made, ratio).latencies()) for ratio in (low, high)]
        for metric, statistics in own.items():
            for statistic, value in statistics.items():
                bounds = [ratio * (end[metric][statistic] or np.nan) for ratio, end in ends]
                if value and np.all(np.isfinite(bounds)):
                    found.setdefault(metric, {}).setdefault(statistic, {})[level] = (
                        bounds[0] / value,
                        bounds[1] / value,
                    )
    return found


def _slower(made: Simulation, ratio: float) -> Simulation:
    """The first replication on a server that takes `ratio` times as long for everything, in its units of time."""
    asked = made.traffic.requests(0)
    outcome = whole_run(_sooner(asked, ratio), made.fleet)
    warm_up_s = None if made.warm_up_s is None else made.warm_up_s / ratio
    return replace(made, outcomes=(outcome,), warm_up_s=warm_up_s)


def _sooner(asked: Requests, ratio: float) -> Requests:
    """Requests like these, of users who send them and pause in 1/ratio of the time."""
    after = {at: (before, delay_s / ratio) for at, (before, delay_s) in asked.after.items()}
    return replace(asked, arrival_s=asked.arrival_s / ratio, after=after)
