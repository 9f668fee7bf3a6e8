"""Scales and ticks of curves: linear or logarithmic, at the sizes or at round numbers, as many as fit."""

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

#: Ratio of largest to smallest value above which an axis is logarithmic.
LOG_SCALE_RATIO = 8.0
#: Maximum number of points with a marker and a tick each.
MAX_MARKED_POINTS = 24


def plain(value: float, _: object = None) -> str:
    """Formats a tick without exponent or binary rounding noise: `1,000,000`.

    Formatters of axes are functions with a name, because a figure with a lambda cannot be pickled.
    """
    return f"{value:,.10g}"


def across(axes: Axes, values: Values, style: Style) -> None:
    """Sets x ticks at the values, as many as fit, or at round numbers if there are many or fractional values."""
    from matplotlib.ticker import NullFormatter

    found = np.unique(values)
    if len(found) > 1 and found[-1] / max(found[0], 1e-9) > LOG_SCALE_RATIO:
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(plain)
    axes.xaxis.set_minor_formatter(NullFormatter())
    if len(found) <= MAX_MARKED_POINTS and (found == np.round(found)).all():
        axes.set_xticks(spaced(found, [plain(value) for value in found], axes, style))
        axes.set_xticks([], minor=True)
    elif axes.get_xscale() == "log":
        round_ticks(axes.xaxis, found, _within_decade(found, axes, style))


def spaced(places: Values, words: Sequence[str], axes: Axes, style: Style) -> Values:
    """Returns as many evenly chosen tick positions as there is room for their labels."""
    return places[:: -(-len(places) // room_for(words, axes, style))]


def room_for(words: Sequence[str], axes: Axes, style: Style) -> int:
    """Returns how many labels of this length fit side by side below the axes."""
    wide = 0.62 * style.size.text * (max(map(len, words)) + 1.0)
    return int(max(_width(axes, style) / wide, 2.0))


def _width(axes: Axes, style: Style) -> float:
    """Returns the approximate width of the axes [point]."""
    return (style.size.width / columns(axes) - 0.06 * style.size.text) * 72.0


def _within_decade(found: Values, axes: Axes, style: Style) -> tuple[float, ...]:
    """Returns the densest tick positions of a decade whose labels stand clear of each other.

    Labels at a decade's ticks are closest where the ratio of neighbours is least: 2 of (1, 2, 5), 3 of (1, 3).
    """
    label = 0.62 * style.size.text * (len(plain(float(np.ceil(found[-1])))) + 0.5)
    decade = _width(axes, style) / float(np.log10(found[-1] / found[0]))
    choices = (((1.0, 2.0, 5.0), 2.0), ((1.0, 3.0), 3.0))
    return next((within for within, ratio in choices if np.log10(ratio) * decade > label), (1.0,))


def columns(axes: Axes) -> int:
    """Returns how many panels stand side by side."""
    spec = axes.get_subplotspec()
    return 1 if spec is None else spec.get_gridspec().ncols


def round_ticks(axis: Axis, known: Values, within: tuple[float, ...] = (1.0, 2.0, 5.0)) -> None:
    """Sets ticks of a logarithmic axis: at `within` in every decade, or at decades only for a wide range."""
    from matplotlib.ticker import LogLocator, NullFormatter

    few = known.max() / known.min() < 300.0
    axis.set_major_locator(LogLocator(subs=within if few else (1.0,)))
    axis.set_major_formatter(plain)
    axis.set_minor_formatter(NullFormatter())


def up(axes: Axes, values: Values) -> None:
    """Sets a logarithmic y axis for a wide range of values, otherwise a linear one from 0."""
    known = values[np.isfinite(values) & (values > 0.0)]
    axes.yaxis.set_major_formatter(plain)
    if not len(known):
        return
    if known.max() / known.min() <= LOG_SCALE_RATIO:
        axes.set_ylim(0.0, 1.08 * float(axes.dataLim.y1))
        return
    axes.set_yscale("log")
    round_ticks(axes.yaxis, known)
