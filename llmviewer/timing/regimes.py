"""Regimes of kernels, by which prediction errors are grouped, and wider intervals outside the fitted range."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.timing.roofline import Timing

#: Kernels shorter than this are bound by launch and latency instead of the roofline [s].
SHORT_S = 20e-6
REGIMES = ("short", "memory", "compute")


def regime_of(timing: Timing) -> Array:
    """Index into REGIMES per point."""
    seconds = dict(timing.resources)
    work = np.maximum(seconds.get("compute", 0.0), 0.0)
    computing = work > seconds.get("memory", 0.0)
    return np.where(np.asarray(timing.time_s) < SHORT_S, 0, np.where(computing, 2, 1)).reshape(-1)


def interval_factor(fitted: Mapping[str, tuple[float, float]], quantities: Mapping[str, Count]) -> Array:
    """Factor on the width of intervals: 1 inside the fitted range, plus 0.5 for every factor of two beyond it."""
    excess: Count = 0.0
    for name, value in quantities.items():
        if name not in fitted:
            continue
        low, high = fitted[name]
        number = np.where(np.asarray(value) > 0.0, np.maximum(value, 1e-9), high)  # a pass without this work is exact
        excess = excess + np.maximum(np.log2(number / high), 0.0) + np.maximum(np.log2(max(low, 1e-9) / number), 0.0)
    return np.asarray(1.0 + 0.5 * excess)
