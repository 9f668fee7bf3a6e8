"""Panels of a figure drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.reports.figure import Limit, Line, Panel
from llmviewer.reports.plots import intervals
from llmviewer.reports.plots.style import Style, colour, dashes, marker
from llmviewer.reports.plots.ticks import MAX_MARKED_POINTS, across, up

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Opacity of a line where the configuration does not fit in memory.
UNFIT_ALPHA = 0.35
MAX_NAME_LENGTH = 60
#: Dashes of limits by rank.
RULES = ("--", ":")


def figure(panels: Sequence[Panel], title: str, style: Style, more: Sequence[Artist] = ()) -> Figure:
    """Returns the panels side by side with a common legend.  more: further legend entries."""
    figure, axes = style.figure(1, len(panels))
    for one, panel in zip(axes, panels, strict=True):
        draw(one, panel, style)
    style.title(figure, title)
    style.legend_below(figure, [*key(panels, style), *more], 1)
    style.settle(figure)
    return figure


def draw(axes: Axes, panel: Panel, style: Style) -> None:
    """Draws lines, limits, scales and labels of one panel."""
    for line in panel.lines:
        _line(axes, line, style)
        if line.band is not None:
            intervals.band(axes, line.x, line.band, colour(line.number))
    axes.set_xlabel(panel.x.title)
    axes.set_ylabel(panel.y.title)
    across(axes, panel.along("x"), style, panel.x)
    up(axes, panel.along("y"), panel.y)
    for limit in panel.limits:
        (axes.axvline if limit.upright else axes.axhline)(limit.at, **_of_limit(limit, style))


def _of_limit(limit: Limit, style: Style) -> dict[str, Any]:
    return {"color": style.theme.ink, "linestyle": RULES[limit.rank % len(RULES)], "linewidth": 1.0, "zorder": 1}


def _line(axes: Axes, line: Line, style: Style) -> None:
    fits = np.ones(len(line.x), dtype=bool) if line.fits is None else line.fits
    ink: dict[str, Any] = {"color": colour(line.number), "linewidth": 1.6, "markersize": 0.6 * style.size.text}
    dash = dashes(line.number)
    if not fits.all():
        axes.plot(line.x, line.y, linestyle=dash, alpha=UNFIT_ALPHA, **ink)
    shown = marker(line.number) if len(line.x) <= MAX_MARKED_POINTS else ""
    axes.plot(line.x, np.where(fits, line.y, np.nan), linestyle=dash, marker=shown, **ink)
    if shown and not fits.all():
        ink |= {"markeredgecolor": colour(line.number), "markerfacecolor": style.theme.paper, "alpha": 0.8}
        axes.plot(line.x[~fits], line.y[~fits], linestyle="", marker=shown, **ink)


def key(panels: Sequence[Panel], style: Style) -> list[Artist]:
    """Returns legend entries: lines if there are several, limits, points that do not fit, bands."""
    from matplotlib.lines import Line2D

    lines = [line for panel in panels for line in panel.lines]
    named = {line.name: line.number for line in lines}
    entries: list[Artist] = [
        Line2D([], [], color=colour(at), linestyle=dashes(at), marker=marker(at), label=_short(name))
        for name, at in named.items()
        if len(named) > 1
    ]
    limits = {limit.name: limit for panel in panels for limit in panel.limits}
    entries += [Line2D([], [], label=name, **_of_limit(one, style)) for name, one in limits.items()]
    if any(line.fits is not None and not line.fits.all() for line in lines):
        look: dict[str, Any] = {"color": style.theme.faint, "markerfacecolor": style.theme.paper, "marker": "o"}
        entries.append(Line2D([], [], label="does not fit in memory", markeredgecolor=style.theme.ink, **look))
    if any(line.band is not None for line in lines):
        entries.append(intervals.band_key(style))
    return entries


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "…"
