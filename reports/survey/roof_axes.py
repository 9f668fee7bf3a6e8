"""Roofs of one chip, for figures that draw their own points under them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports.plots import labels
from llmviewer.reports.plots.roofs import Roofs, draw, label_zones, reserve_main_roofs, reserve_ridge

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from llmviewer.reports.plots.style import Style

#: Radius of a marker, in text heights.
MARKER_RADIUS = 0.4


def under(axes: Axes, over: pd.DataFrame, main: str, named: Sequence[labels.Label], style: Style) -> None:
    """Draws the roofs of one chip and labels of points; call it last.  main: name of the main compute roof."""
    style.settle(axes.figure)  # type: ignore[arg-type]
    space = labels.Space(axes=axes)
    space.take_legend()
    points = np.array([(label.x, label.y) for label in named]).reshape(-1, 2)
    space.take_points(points, np.full(len(points), MARKER_RADIUS * style.size.text))
    rate = float(over.loc[over["what"] == main, "rate"].iloc[0])
    roofs = Roofs(rows=over, main=rate, chips=1, ink=style.theme.ink)
    reserve_ridge(space, roofs)
    draw(space, roofs, style)
    reserve_main_roofs(space, roofs)
    labels.place(space, named, style.size.text * 0.8)
    label_zones(space, roofs.ridge, style)
