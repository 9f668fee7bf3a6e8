"""Tornado: by how much a time falls if each resource of the chip grows by ten percent, the largest at the top."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.language.quantity import LATENCIES
from llmviewer.planning.elasticity import Elasticities
from llmviewer.reports import format as fmt
from llmviewer.reports.plots import curves
from llmviewer.reports.plots.style import Style, colour

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Growth of a resource that the bars show.
MORE = 0.1
#: Share of the time below which a resource has no bar.
LEAST = 1e-4


def frame(found: Elasticities) -> pd.DataFrame:
    """Returns rows of `resource`, `elasticity`, and the shares of the time with a tenth `more` and `less` of it."""
    import pandas as pd

    rows = [
        {
            "resource": name,
            "elasticity": share,
            "more": -found.saved(name, MORE),
            "less": -found.saved(name, -MORE),
        }
        for name, share in found.by_resource.items()
        if abs(found.saved(name, MORE)) > LEAST
    ]
    return pd.DataFrame(rows, columns=["resource", "elasticity", "more", "less"])


def picture(found: Elasticities, style: Style) -> Figure:
    """Plots the elasticities of one configuration."""
    figure, (axes,) = style.figure()
    rows = frame(found)
    places = np.arange(len(rows))[::-1]
    for at, (column, word) in enumerate((("more", "10 % more"), ("less", "10 % less"))):
        axes.barh(places, 100.0 * rows[column], 0.7, color=colour(at), label=word)
    for place, (more, less) in zip(places, rows[["more", "less"]].to_numpy(dtype=float), strict=True):
        for value, side in ((more, "right"), (less, "left")):
            offset = (-3 if side == "right" else 3, 0)
            axes.annotate(
                fmt.signed(value), (100.0 * value, place), xytext=offset, textcoords="offset points", ha=side,
                va="center", fontsize=style.size.text * 0.75, color=style.theme.ink,
            )  # fmt: skip
    axes.axvline(0.0, color=style.theme.ink, linewidth=0.8)
    axes.set_yticks(places, list(rows["resource"]))
    axes.set_xlabel("Change of the time (%)")
    axes.margins(x=0.16)
    axes.grid(visible=False, axis="y")
    run = curves.title_of(found.result)
    style.title(figure, f"{LATENCIES[found.metric].heading}: {run}; {found.sentence()}")
    style.legend_below(figure, axes.get_legend_handles_labels()[0])
    style.settle(figure)
    return figure
