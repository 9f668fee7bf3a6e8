"""Distributions of TTFT, TPOT and E2E in a simulated run, with percentiles and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.language.quantity import LATENCIES
from llmviewer.reports.plots import load_panels
from llmviewer.reports.plots.style import PALETTE, Style
from llmviewer.simulation.limits import QUANTILES
from llmviewer.simulation.result import Simulation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Percentiles that are marked.
MARKED = ("p50", "p90", "p99")


def picture(made: Simulation, style: Style) -> Figure:
    """Plots the share of requests below each latency, without those of the warm-up."""
    figure, axes = style.figure(1, len(LATENCIES), sharey=True)
    window, records = made.windows[0], made.records
    for at, (axis, (name, one)) in enumerate(zip(axes, LATENCIES.items(), strict=True)):
        values = getattr(records, name)[window.chosen]
        scale, unit = load_panels.scale_of(values)
        x, y = load_panels.distribution(values / scale)
        axis.plot(x, 100.0 * y, color=PALETTE[at], linewidth=1.4)
        for quantile in MARKED if len(x) else ():
            share = QUANTILES[quantile]
            value = float(np.interp(share, y, x))
            axis.plot([value], [100.0 * share], marker="o", markersize=3.5, color=PALETTE[at])
            axis.annotate(
                f"{quantile} {value:,.3g}", (value, 100.0 * share), textcoords="offset points", xytext=(4, -8),
                fontsize=style.size.text * 0.8, color=style.theme.ink,
            )  # fmt: skip
        for limit in made.limits:
            if limit.metric == name:
                axis.axvline(limit.seconds / scale, color=style.theme.ink, linestyle="--", linewidth=0.9)
        axis.set_xlabel(f"{one.label} ({unit})")
        if len(x) and x[-1] > 20.0 * max(x[0], 1e-12):
            axis.set_xscale("log")
    axes[0].set_ylabel("requests (%)")
    style.title(figure, load_panels.title(made))
    return figure
