"""Scales and ticks of curves: linear or logarithmic, at sizes or at round numbers, as many as have room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports.plots.style import Style

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    Values: TypeAlias = npt.NDArray[np.float64]

#: Beyond this ratio an axis is logarithmic.
LOG_SCALE_RATIO = 8.0
#: Points that have a marker and a tick each; more have not.
MAX_MARKED_POINTS = 24


def plain(value: float) -> str:
    """`1,000,000`, as ticks say it: no exponent, no noise of binary fractions."""
    return f"{value:,.10g}"


def across(axes: Axes, values: Values, style: Style) -> None:
    """Ticks at the values themselves, as many as have room; at round numbers where they are many or odd."""
    found = np.unique(values)
    if len(found) > 1 and found[-1] / max(found[0], 1e-9) > LOG_SCALE_RATIO:
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: plain(value))
    axes.xaxis.set_minor_formatter(lambda *_: "")
    if len(found) <= MAX_MARKED_POINTS and (found == np.round(found)).all():
        axes.set_xticks(spaced(found, [plain(value) for value in found], axes, style))
        axes.set_xticks([], minor=True)
    elif axes.get_xscale() == "log":
        room = room_for([f"{found[-1]:,.0f}"], axes, style)
        round_ticks(axes.xaxis, found, (1.0, 2.0, 5.0) if 3.0 * np.log10(found[-1] / found[0]) < room else (1.0, 4.0))


def spaced(places: Values, words: Sequence[str], axes: Axes, style: Style) -> Values:
    """As many of the places of ticks as have room for their words."""
    return places[:: -(-len(places) // room_for(words, axes, style))]


def room_for(words: Sequence[str], axes: Axes, style: Style) -> int:
    """How many words of this length stand side by side below the axes."""
    spec = axes.get_subplotspec()
    columns = 1 if spec is None else spec.get_gridspec().ncols
    wide = 0.62 * style.size.text * (max(map(len, words)) + 1.0)
    return int(max((style.size.width / columns - 0.06 * style.size.text) * 72.0 / wide, 2.0))


def round_ticks(axis: Axis, known: Values, within: tuple[float, ...] = (1.0, 2.0, 5.0)) -> None:
    """Of a logarithmic axis: `within` every decade, or decades where they are many."""
    from matplotlib.ticker import LogLocator

    few = known.max() / known.min() < 300.0
    axis.set_major_locator(LogLocator(subs=within if few else (1.0,)))
    axis.set_major_formatter(lambda value, _: plain(value))
    axis.set_minor_formatter(lambda *_: "")


def up(axes: Axes, values: Values) -> None:
    """A logarithmic y where values span much, from 0 otherwise."""
    known = values[np.isfinite(values) & (values > 0.0)]
    axes.yaxis.set_major_formatter(lambda value, _: plain(value))
    if not len(known):
        return
    if known.max() / known.min() <= LOG_SCALE_RATIO:
        axes.set_ylim(0.0, 1.08 * float(axes.dataLim.y1))
        return
    axes.set_yscale("log")
    round_ticks(axes.yaxis, known)
