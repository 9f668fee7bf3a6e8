"""GPU hours of a perfect autoscaler, which knows the load in advance, and of a constant number of replicas."""

from __future__ import annotations

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.simulation.traffic import DAY_S, Traffic


def gpu_hours(traffic: Traffic, capacity: float, devices: int, window_s: float, start_up_s: float) -> dict[str, float]:
    """The fewest GPU hours that serve a load whose rate varies.

    capacity: highest rate of one replica [1/s].  devices: of one replica.  In each window as many replicas run as its
    mean rate needs; a replica that is added runs `start_up_s` before its window begins.
    """
    rates, lengths = _rates(traffic, window_s)
    replicas = np.maximum(np.ceil(rates / capacity - 1e-9), 1.0)
    added = np.maximum(np.diff(replicas, prepend=replicas[0]), 0.0)
    hours = float(np.sum(replicas * lengths) + np.sum(added) * start_up_s) * devices / 3600.0
    constant = float(replicas.max() * lengths.sum()) * devices / 3600.0
    return {
        "gpu_hours": min(hours, constant),
        "constant_gpu_hours": constant,
        "most_replicas": float(replicas.max()),
        "fewest_replicas": float(replicas.min()),
        "mean_replicas": float(np.sum(replicas * lengths) / lengths.sum()),
        "duration_s": float(lengths.sum()),
        "window_s": window_s,
        "start_up_s": start_up_s,
    }


def _rates(traffic: Traffic, window_s: float) -> tuple[Array, Array]:
    """Mean rate of each window [1/s] and its length [s]: of a trace, or of a day of a curve."""
    if traffic.curve is not None:
        edges, expected = traffic.curve.expected(DAY_S)
        times = np.append(np.arange(0.0, DAY_S, window_s), DAY_S)
        counts = np.diff(np.interp(times, edges, expected)) * traffic.speed_up
        lengths = np.diff(times)
        return counts / lengths, lengths
    arrivals = traffic.requests().arrival_s
    until = float(arrivals[-1])
    times = np.append(np.arange(0.0, until, window_s), until)
    lengths = np.diff(times)
    counts, _ = np.histogram(arrivals, times)
    kept = lengths > 0.0
    return counts[kept] / lengths[kept], lengths[kept]
