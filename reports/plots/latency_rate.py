"""Latencies of a simulated server against the request rate, up to the rate that it can just sustain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.core.errors import UserError
from llmviewer.language.quantity import LATENCIES
from llmviewer.reports import format as fmt
from llmviewer.reports.figure import Axis, Limit, Line, Panel
from llmviewer.reports.plots import drawing, load_panels
from llmviewer.reports.plots.style import Style
from llmviewer.simulation import limits as simulation
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
        one = replace(made, traffic=traffic, outcomes=tuple(run_all(made.fleet, traffic, 1)), max_request_rate=None)
        found = one.latencies()
        values = {f"{name} {which}": found[name][which] for name in SHOWN for which in STATISTICS}
        return {"request_rate": share * most, "sustained": most, **values}

    return pd.DataFrame(on_all_cores(at, SHARES))


def draw(rows: pd.DataFrame, made: Simulation, style: Style) -> Figure:
    """Draws rows of `frame`, with the limits of the simulation."""
    found = panels(rows, made.limits)
    return drawing.figure([*found.values()], load_panels.title(made, rate=False), style)


def panels(rows: pd.DataFrame, limits: Sequence[simulation.Limit] = (), rate: float | None = None) -> dict[str, Panel]:
    """Returns latency -> its panel.  rate: the one that was asked [1/s]."""
    found, across = {}, rows["request_rate"].to_numpy(float)
    ends = [Limit(name="saturated", at=float(rows["sustained"].iloc[0]), upright=True, rank=1)]
    ends += [] if rate is None else [Limit(name="rate asked", at=rate, upright=True)]
    for name, label in SHOWN.items():
        values = rows[[f"{name} {which}" for which in STATISTICS]].to_numpy(dtype=np.float64)
        scale, unit = load_panels.scale_of(values.ravel())
        lines = [
            Line(
                name=which,
                number=at,
                x=across,
                y=values[:, at] / scale,
                words=tuple(f"{label} {which}: {fmt.duration(one)}\n{x:.3g} requests/s"
                            for x, one in zip(across, values[:, at], strict=True)),
            )
            for at, which in enumerate(STATISTICS)
        ]  # fmt: skip
        found[name] = Panel(
            x=Axis(title="Requests/s", linear=True),
            y=Axis(title=f"{label} ({unit})"),
            lines=tuple(lines),
            limits=(*ends, *load_panels.limits(limits, name, scale)),
        )
    return found
