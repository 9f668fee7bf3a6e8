"""Frontier of a target: the least of one figure of a chip for every value of another, with the chips that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.core.errors import UserError
from llmviewer.language.quantity import LATENCIES
from llmviewer.planning.require import Required
from llmviewer.reports import format as fmt
from llmviewer.reports.plots import curves, ticks
from llmviewer.reports.plots.style import Style, colour, dashes
from llmviewer.result.columns import figure_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Room around the frontier, within which real chips are drawn.
ROOM = 1.6
#: Logarithmic ratios of both figures within which chips share a spot.
SPOT = np.array([0.02, 0.09])
#: Ticks in a decade, of a short axis and of a long one.
DENSE, SPARSE = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), (1.0, 2.0, 5.0)


def frame(found: Required) -> pd.DataFrame:
    """Returns a row per solution: its figures in SI units, and the metric."""
    import pandas as pd

    return pd.DataFrame([{**one.figures, found.metric: one.reached} for one in found.solutions])


def picture(found: Required, style: Style) -> Figure:
    """Plots the frontier of two figures, or of three with a line for each value of the one in the middle."""
    x, *middle, y = _rates(found)
    rows = frame(found)
    scales = {name: axis_scale(name, float(rows[name].max())) for name in (x, y)}
    figure, (axes,) = style.figure()
    for at, (label, own) in enumerate(_series(rows, middle)):
        points = own[x] / scales[x][0], own[y] / scales[y][0]
        axes.plot(*points, color=colour(at), linestyle=dashes(at), marker=".", label=label)
        if not middle:
            axes.fill_between(*points, 1e3 * points[1].max(), color=colour(at), alpha=0.12, linewidth=0.0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, name in ((axes.xaxis, x), (axes.yaxis, y)):
        values = rows[name].to_numpy(float) / scales[name][0]
        ticks.round_ticks(axis, values, DENSE if values.max() < 10.0 * values.min() else SPARSE)
        axis.set_label_text(f"{name} ({scales[name][1]})")
    words = f"{LATENCIES[found.metric].label} of {fmt.duration(found.target)}: {curves.title_of(found.now)}"
    style.title(figure, f"{words}; other figures of {found.configuration.chip.name}")
    # with a third figure a chip's place among the lines would not say whether it has enough of that one
    chips = [] if middle else _chips(axes, found, {name: scale for name, (scale, _) in scales.items()}, style)
    style.legend_below(figure, axes.get_legend_handles_labels()[0])
    style.settle(figure)
    space = ticks.Space(axes=axes)
    space.take_points(rows[[x, y]].to_numpy(float) / (scales[x][0], scales[y][0]), np.full(len(rows), 3.0))
    for dots in axes.collections[1:]:  # after the area above the line
        space.take_points(np.array(dots.get_offsets()), np.array([2.0]))
    ticks.place(space, chips, 0.8 * style.size.text)
    return figure


def _series(rows: pd.DataFrame, middle: list[str]) -> list[tuple[str, pd.DataFrame]]:
    """Returns the points of every line with its label: all of them, or those of each value of the figure between."""
    if not middle:
        return [("least figures", rows)]
    (name,) = middle
    values = sorted(set(rows[name]))
    return [(f"{name} {figure_text(name, value)}", rows[rows[name] == value]) for value in values]


def _rates(found: Required) -> list[str]:
    """Returns the varied rates.  Raises UserError for fewer than two, and without a solution."""
    rates = [*found.searched]
    if len(rates) < 2:
        raise UserError(f"a frontier needs two rates, such as bandwidth,peak.bf16; given: {', '.join(found.vary)}")
    if not found.solutions:
        raise UserError(f"no {' and '.join(rates)} meet the target; at least {fmt.duration(found.floor)} remain")
    return rates


def axis_scale(name: str, largest: float) -> tuple[float, str]:
    """Returns the size of the axis' unit, and the unit with its prefix; 1 and no unit for a factor.

    name: of a figure of a chip.  largest: value on its axis, in SI units.
    """
    number, _, unit = figure_text(name, largest).partition(" ")
    if not unit:
        return 1.0, ""
    return 1000.0 ** round(np.log10(largest / float(number)) / 3.0), unit


def _chips(axes: Axes, found: Required, scales: dict[str, float], style: Style) -> list[ticks.Label]:
    """Draws the chips that exist near the frontier, and returns their names, those of one spot below each other."""
    rows = frame(found)
    x, y = scales
    limits = {name: (rows[name].min() / ROOM, rows[name].max() * ROOM) for name in scales}
    own = found.configuration.chip.name
    kept = {
        chip: figures
        for chip, figures in found.chips().items()
        if chip == own or all(limits[name][0] <= figures[name] <= limits[name][1] for name in scales)
    }
    points = [(figures[x] / scales[x], figures[y] / scales[y]) for figures in kept.values()]
    if points:
        across, up = np.array(points).T
        axes.scatter(across, up, s=10.0, color=style.theme.ink, zorder=4, label="chips that exist")
    axes.set_ylim(min([limits[y][0] / scales[y], *(0.9 * at for _, at in points)]), limits[y][1] / scales[y])
    spots: list[list[tuple[float, float, str]]] = []
    for across, up, chip in sorted(
        ((*at, chip) for chip, at in zip(kept, points, strict=True)), key=lambda one: one[1]
    ):
        apart = [max(abs(np.log((across / one[-1][0], up / one[-1][1]))) / SPOT) for one in spots]
        if not apart or min(apart) > 1.0:
            spots.append([(across, up, chip)])
        else:
            spots[int(np.argmin(apart))].append((across, up, chip))
    return [
        ticks.Label(words="\n".join(chip for *_, chip in reversed(one)), x=x, y=y, colour=style.theme.ink)
        for one in spots
        for x, y, _ in [one[len(one) // 2]]
    ]
