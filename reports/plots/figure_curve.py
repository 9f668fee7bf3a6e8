"""Time over any figure of hypothetical chips that differ only in it; over the capacity, the requests that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.core.errors import unknown
from llmviewer.reports.plots import curves
from llmviewer.reports.plots.frontier import axis_scale
from llmviewer.reports.plots.style import Style
from llmviewer.result.columns import SET

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

CAPACITY, REQUESTS = "capacity", "max_concurrent_requests"


def frame(results: curves.Results) -> pd.DataFrame:
    """Returns the rows of all chips with the requests that fit at once; the figure's column is `set.NAME` [SI]."""
    fitting = [one.memory[REQUESTS] for _, one in curves.each(results)]
    return curves.frame(results).assign(**{REQUESTS: fitting}).drop(columns="set")


def picture(results: curves.Results, style: Style, over: str) -> Figure:
    """Plots configurations over a figure of their chips.  over: its name."""
    return draw(frame(results), style, over)


def draw(rows: pd.DataFrame, style: Style, over: str) -> Figure:
    """Draws rows of `frame` in the unit of the figure.  over: its name.  Raises UserError if no chip sets it."""
    if f"{SET}{over}" not in rows:
        raise unknown(
            "figure that the points set", over, [one.removeprefix(SET) for one in map(str, rows) if one.startswith(SET)]
        )
    values = rows[f"{SET}{over}"]
    scale, unit = axis_scale(over, float(values.max()))
    x = f"{over} ({unit})" if unit else f"{over} (× the chip's own)"
    rows = rows.drop(columns=f"{SET}{over}").assign(**{x: values / scale})
    if over == CAPACITY:
        panels = [curves.Curve(x=x, y=REQUESTS, title="Requests at once")]
    else:
        stages = (("prefill_time_s", "Prefill time"), ("decode_time_s", "Decode step time"))
        panels = [curves.of_time(rows, x, y, title) for y, title in stages]
    return curves.draw(rows, panels, style)
