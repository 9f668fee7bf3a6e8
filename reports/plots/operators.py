"""Time by operator: what prefill and a decode step spend, one bar a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from llmviewer.reports.plots import bars, curves
from llmviewer.reports.plots.style import Style
from llmviewer.result.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Operators with a colour of their own.
MOST = 12
#: What copies take while kernels run.
HIDDEN = "copies beside kernels"
STAGES = {"prefill": "Prefill", "decode": "Decode step"}


def frame(results: Mapping[str, Result]) -> pd.DataFrame:
    """Rows of `configuration`, `stage`, `name` and `time_s` over all layers, of the first point; what an engine adds
    and what hides behind kernels (negative) among them."""
    import pandas as pd

    rows = []
    for configuration, result in results.items():
        for stage in STAGES:
            said = result.stage(stage)
            spent = [(one["name"], one["time_s"] * one["layers"]) for one in said["operators"]]
            layers = {one["block"]: one["layers"] for one in said["operators"]}
            spent += list(said["served_s"].items())
            spent += [(HIDDEN, -hidden * layers[block]) for block, hidden in said["overlap_s"].items() if hidden]
            rows += [{"configuration": configuration, "stage": stage, "name": n, "time_s": t} for n, t in spent]
    return pd.DataFrame(rows)


def picture(results: Mapping[str, Result], style: Style) -> Figure:
    """The picture of some configurations, each answering one point."""
    return draw(frame(results), style, curves.common_title(curves.frame(results)))


def draw(rows: pd.DataFrame, style: Style, title: str = "") -> Figure:
    """rows: as of `frame`."""
    import pandas as pd

    figure, axes = style.figure(1, len(STAGES))
    table = rows.pivot_table(index=["stage", "configuration"], columns="name", values="time_s", aggfunc="sum")
    order = list(dict.fromkeys(rows["configuration"]))
    share = table.div(table.sum(axis=1), axis=0).fillna(0.0)
    stacked = bars.parts(share, MOST)
    kept = {part.name: part.number for part in stacked}
    for one, (stage, words) in zip(axes, STAGES.items(), strict=True):
        own = pd.DataFrame(table.xs(stage, level="stage")).reindex(order).fillna(0.0)
        curve = curves.of_time(pd.DataFrame({"time_s": own.sum(axis=1)}), "", "time_s", words)
        left = own[[name for name in own.columns if name not in kept]].sum(axis=1).to_numpy(float)
        shown = [
            bars.BarPart(name=n, sizes=(own[n].to_numpy(float) if n in own else left) / curve.scale, number=number)
            for n, number in kept.items()
        ]
        bars.stack(one, shown, style)
        bars.names(one, order, style)
        one.set_ylabel(f"{curve.title} ({curve.unit})")
        one.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    style.title(figure, title)
    style.legend_below(figure, bars.handles(stacked, style))
    style.settle(figure)
    return figure
