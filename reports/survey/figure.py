"""A figure of the survey: queries, rows, plot, claims; its curves and roofs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from llmviewer.core.frozen import frozen
from llmviewer.reports.plots import ticks
from llmviewer.reports.plots.roofs import Roofs, draw, label_zones, reserve_main_roofs, reserve_ridge
from llmviewer.reports.plots.style import Style, colour, dashes, marker
from llmviewer.reports.survey.peer import Peer, SurveyQuery
from llmviewer.result.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.page import Table
    from llmviewer.reports.plots.style import Style

#: Width of a scale [decade] above which only powers of ten have ticks.
WIDE = 2.2


def curves(axes: Axes, frame: pd.DataFrame, names: tuple[str, str, str], style: Style) -> None:
    """Draws one line per series.  names: columns of x, y and series."""
    across, up, series = names
    for at, (name, rows) in enumerate(frame.groupby(series, sort=False)):
        axes.plot(
            rows[across], rows[up], label=str(name), color=colour(at), linestyle=dashes(at), marker=marker(at),
            markersize=0.5 * style.size.text, linewidth=1.3,
        )  # fmt: skip


def log(axes: Axes, across: str, up: str) -> None:
    """Sets log scales, labels and plain tick numbers; call it after drawing the curves."""
    axes.set(xscale="log", yscale="log")
    labelled(axes, across, up)
    for axis in (axes.xaxis, axes.yaxis):
        plain(axis)


def plain(axis: Axis) -> None:
    """Sets plain numbers as ticks of a log scale; 1, 2 and 5 of each decade if there are few decades."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1.0,) if np.log10(high / low) > WIDE else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(base=10.0, subs=subs, numticks=20))
    axis.set_major_formatter(ticks.plain)
    axis.set_minor_formatter(NullFormatter())


def labelled(axes: Axes, across: str, up: str) -> None:
    """Sets the labels of both axes."""
    axes.set_xlabel(across)
    axes.set_ylabel(up)


def tagged(axes: Axes, words: str, style: Style) -> None:
    """Sets the heading of one of several axes."""
    axes.set_title(words, fontsize=style.size.text, color=style.theme.ink, loc="left")


#: Radius of a marker, in text heights.
MARKER_RADIUS = 0.4


def under(axes: Axes, over: pd.DataFrame, main: str, named: Sequence[ticks.Label], style: Style) -> None:
    """Draws the roofs of one chip and labels of points; call it last.  main: name of the main compute roof."""
    style.settle(axes.figure)  # type: ignore[arg-type]
    space = ticks.Space(axes=axes)
    space.take_legend()
    points = np.array([(label.x, label.y) for label in named]).reshape(-1, 2)
    space.take_points(points, np.full(len(points), MARKER_RADIUS * style.size.text))
    rate = float(over.loc[over["what"] == main, "rate"].iloc[0])
    roofs = Roofs(rows=over, main=rate, chips=1, ink=style.theme.ink)
    reserve_ridge(space, roofs)
    draw(space, roofs, style)
    reserve_main_roofs(space, roofs)
    ticks.place(space, named, style.size.text * 0.8)
    label_zones(space, roofs.ridge, style)


#: Name -> rows of a figure; "" is its main table, others are additional ones (roofs).
Frames: TypeAlias = Mapping[str, Any]
#: A DataFrame or a column of one; the pandas stubs do not type its values.
Rows: TypeAlias = Any
Results: TypeAlias = Mapping[str, Result]


@frozen
class Verdict:
    """Whether a claim holds by our counts, and the numbers that show it."""

    holds: bool
    because: str


@frozen
class Claim:
    """A conclusion of the survey, checked as a relation of the rows."""

    says: str
    check: Callable[[Frames], Verdict]


@frozen
class SurveyFigure:
    """One figure or table.

    setting: models, chip and sizes.  peers: numbers of LLM-Viewer to compare with.  differs: why numbers differ, or
    why there are none.  table: rows as the survey prints them.  remark: conclusion from LLM-Viewer's own numbers,
    which are rows of `peer.compared`.
    """

    title: str
    setting: str
    queries: Mapping[str, SurveyQuery]
    frames: Callable[[Results], Frames]
    draw: Callable[[Frames, Style], Picture]
    claims: tuple[Claim, ...]
    peers: tuple[Peer, ...] = ()
    differs: str = ""
    table: Callable[[Frames], Table] | None = None
    remark: Callable[[Rows], str] | None = None


def rising(values: Iterable[float]) -> bool:
    """Whether every value is larger than the previous one."""
    return all(after > before for before, after in pairwise(values))


def joined_rows(results: Results, **columns: str) -> Rows:
    """Returns the rows of all points, with the name of the query as first column `asked`.

    columns: name in the rows -> column of `Result.to_frame`.
    """
    import pandas as pd

    sizes = {name: name for name in ("batch_size", "input_len", "output_len")}
    wanted = {"model": "model", "hardware": "hardware", **sizes, **columns}
    frames = []
    for query, result in results.items():
        rows = result.to_frame()[list(wanted.values())].set_axis(list(wanted), axis="columns")
        rows.insert(0, "asked", query)
        frames.append(rows)
    return pd.concat(frames, ignore_index=True)
