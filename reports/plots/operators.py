"""Time of prefill and of a decode step by operator, one bar per configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports.plots import bars, curves, intervals, ticks
from llmviewer.reports.plots.style import Style
from llmviewer.result.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Operators with a colour of their own.
MAX_OPERATORS = 12
#: Copy time that overlaps kernels.
HIDDEN = "copies overlapping kernels"
STAGES = {"prefill": "Prefill time", "decode": "Decode step time"}


def frame(results: Mapping[str, Result]) -> pd.DataFrame:
    """Returns rows of `configuration`, `stage`, `name` and `time_s` (over all layers) of the first point.

    They include engine overhead and, as a negative time, copies that overlap kernels.
    """
    import pandas as pd

    rows = []
    for configuration, result in results.items():
        for stage in STAGES:
            found = result.stage(stage)
            spent = [(one["name"], one["time_s"] * one["layers"]) for one in found["operators"]]
            layers = {one["block"]: one["layers"] for one in found["operators"]}
            spent += list(found["served_s"].items())
            spent += [(HIDDEN, -hidden * layers[block]) for block, hidden in found["overlap_s"].items() if hidden]
            rows += [{"configuration": configuration, "stage": stage, "name": n, "time_s": t} for n, t in spent]
    return pd.DataFrame(rows)


def picture(results: Mapping[str, Result], style: Style) -> Figure:
    """Plots configurations with one point each."""
    totals = curves.frame(results)
    return draw(frame(results), style, curves.common_title(totals), totals)


def draw(rows: pd.DataFrame, style: Style, title: str = "", totals: pd.DataFrame | None = None) -> Figure:
    """Draws rows of `frame`.  totals: rows of `curves.frame`, whose intervals of the stages become whiskers."""
    import pandas as pd

    stages = {stage: words for stage, words in STAGES.items() if stage in set(rows["stage"])}  # encoders only prefill
    figure, axes = style.figure(1, len(stages))
    table = rows.pivot_table(index=["stage", "configuration"], columns="name", values="time_s", aggfunc="sum")
    order = list(dict.fromkeys(rows["configuration"]))
    known = (
        pd.DataFrame(index=order)
        if totals is None
        else totals.drop_duplicates("configuration").set_index("configuration").loc[order]
    )
    share = table.div(table.sum(axis=1), axis=0).fillna(0.0)
    stacked = bars.parts(share, MAX_OPERATORS)
    kept = {part.name: part.number for part in stacked}
    for one, (stage, words) in zip(axes, stages.items(), strict=True):
        own = pd.DataFrame(table.xs(stage, level="stage")).reindex(order).fillna(0.0)
        curve = curves.of_time(pd.DataFrame({"time_s": own.sum(axis=1)}), "", "time_s", words)
        rest = own[[name for name in own.columns if name not in kept]].sum(axis=1).to_numpy(float)
        shown = [
            bars.BarPart(name=n, sizes=(own[n].to_numpy(float) if n in own else rest) / curve.scale, number=number)
            for n, number in kept.items()
        ]
        bars.stack(one, shown, style)
        bars.names(one, order, style)
        one.set_ylabel(curves.axis_label(known, curve.title, curve.unit))
        low, high = intervals.ends(known, f"{stage}_time_s")
        intervals.whiskers(one, np.arange(len(known), dtype=np.float64), (low / curve.scale, high / curve.scale), style)
        one.yaxis.set_major_formatter(ticks.plain)
    style.title(figure, title)
    entries = bars.handles(stacked, style)
    style.legend_below(
        figure, [*entries, intervals.whisker_key(style)] if intervals.known(known, "decode_time_s") else entries
    )
    style.settle(figure)
    return figure
