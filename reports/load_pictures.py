"""Pictures of a simulated load for a report."""

from __future__ import annotations

import io

from llmviewer.reports.plots import KINDS, PlotData
from llmviewer.reports.plots.plot import drawn, style_of
from llmviewer.simulation.result import Simulation

#: Kind that runs other rates, which only a load that arrives has.
OF_RATES = "latency-rate"


def pictures(made: Simulation) -> dict[str, bytes]:
    """Returns a PNG file for each kind of plot of loads, by its summary; none of a server that answers nothing."""
    if made.saturated or not made.to_dict()["completed"]:
        return {}
    found = {}
    for name, kind in KINDS.items():
        if kind.data is PlotData.LOAD and (name != OF_RATES or made.traffic.is_open):
            stream = io.BytesIO()
            drawn(kind, made, style_of("light", "page"), {}).savefig(stream, format="png")
            found[kind.summary] = stream.getvalue()
    return found
