"""Latencies of a simulated server against the request rate, up to the rate that it can just sustain."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.core.errors import UserError
from llmviewer.language.quantity import LATENCIES
from llmviewer.reports.plots import load_panels
from llmviewer.reports.plots.style import MARKERS, PALETTE, Style
from llmviewer.simulation.call import highest_rate_of, run_all
from llmviewer.simulation.parallel import on_all_cores
from llmviewer.simulation.result import Simulation

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Rates of the curve as shares of the highest sustainable one; the knee is where it bends upward before 1.
SHARES = (0.05, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.87, 0.93, 0.97)
SHOWN = {name: LATENCIES[name].label for name in ("ttft_s", "tpot_s")}
STATISTICS = ("p50", "p99")
#: Ratio of the longest time of a panel to the shortest beyond which its scale is logarithmic.
STEEP = 15.0


def picture(made: Simulation, style: Style) -> Figure:
    """Plots p50 and p99 of TTFT and TPOT at ten rates."""
    return draw(frame(made), made, style)


def frame(made: Simulation) -> pd.DataFrame:
    """Returns a row per rate; `sustained` is the highest one [1/s].  Raises UserError for a closed loop."""
    import pandas as pd

    if not made.traffic.is_open:
        raise UserError("this plot needs requests that arrive at a rate; give request_rate or a trace")
    most = highest_rate_of(replace(made, limits=()))
    if not most:
        raise UserError("the server sustains no rate")

    def at(share: float) -> dict[str, float | None]:
        traffic = made.traffic.at_rate(share * most)
        one = replace(made, traffic=traffic, outcomes=tuple(run_all(made.fleet, traffic, 1)), searched_rate=None)
        found = one.latencies()
        values = {f"{name} {which}": found[name][which] for name in SHOWN for which in STATISTICS}
        return {"request_rate": share * most, "sustained": most, **values}

    return pd.DataFrame(on_all_cores(at, SHARES))


def draw(rows: pd.DataFrame, made: Simulation, style: Style) -> Figure:
    """Draws rows of `frame`, with the limits of the simulation."""
    figure, axes = style.figure(1, len(SHOWN))
    for axis, (name, words) in zip(axes, SHOWN.items(), strict=True):
        values = rows[[f"{name} {which}" for which in STATISTICS]].to_numpy(dtype=np.float64)
        scale, unit = load_panels.scale_of(values.ravel())
        for at, which in enumerate(STATISTICS):
            axis.plot(
                rows["request_rate"], values[:, at] / scale, color=PALETTE[at], marker=MARKERS[at], markersize=3.5,
                linewidth=1.3, label=which,
            )  # fmt: skip
        axis.axvline(rows["sustained"].iloc[0], color=style.theme.ink, linestyle=":", linewidth=1.0, label="saturated")
        for limit in made.limits:
            if limit.metric == name:
                axis.axhline(limit.seconds / scale, color=style.theme.ink, linestyle="--", linewidth=0.9, label="limit")
        axis.set_xlabel("requests/s")
        axis.set_ylabel(f"{words} ({unit})")
        axis.set_xlim(left=0.0)
        if np.nanmax(values) > STEEP * np.nanmin(values):
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0.0)
    style.legend(axes[0])
    style.title(figure, load_panels.title(made, rate=False))
    return figure
