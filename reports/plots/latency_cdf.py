"""Distributions of TTFT, TPOT and E2E in a simulated run, with percentiles and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.language.quantity import LATENCIES
from llmviewer.reports.figure import Axis, Line, Panel
from llmviewer.reports.plots import drawing, load_panels
from llmviewer.reports.plots.style import Style, colour
from llmviewer.simulation.limits import QUANTILES
from llmviewer.simulation.result import Simulation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Percentiles that are marked.
MARKED = ("p50", "p90", "p99")


def picture(made: Simulation, style: Style) -> Figure:
    """Plots the share of requests below each latency, without those of the warm-up."""
    panels = []
    for at, (name, one) in enumerate(LATENCIES.items()):
        values = getattr(made.records, name)[made.windows[0].chosen]
        scale, unit = load_panels.scale_of(values)
        x, y = load_panels.distribution(values / scale)
        limits = load_panels.limits(made.limits, name, scale, upright=True)
        axes = {"x": Axis(title=f"{one.label} ({unit})"), "y": Axis(title="" if at else "Requests (%)", linear=True)}
        panels.append(Panel(**axes, lines=(Line(name="", number=0, x=x, y=100.0 * y),), limits=tuple(limits)))
    figure = drawing.figure(panels, load_panels.title(made), style)
    for axis, panel in zip(figure.axes, panels, strict=True):
        (line,) = panel.lines
        for quantile in MARKED if len(line.x) else ():
            share = 100.0 * QUANTILES[quantile]
            value = float(np.interp(share, line.y, line.x))
            axis.plot([value], [share], marker="o", markersize=3.5, color=colour(line.number))
            axis.annotate(
                f"{quantile} {value:,.3g}", (value, share), textcoords="offset points", xytext=(-5, 2), ha="right",
                fontsize=style.size.text * 0.8, color=style.theme.ink,
            )  # fmt: skip
    return figure
