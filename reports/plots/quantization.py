"""Time and memory of configurations that differ in quantization or any other option, as bars grouped by chip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.core.frozen import frozen
from llmviewer.reports import format as fmt
from llmviewer.reports.plots import bars, curves, intervals, memory, ticks
from llmviewer.reports.plots.curves import frame
from llmviewer.reports.plots.style import Style, colour
from llmviewer.result import separable

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy.typing as npt
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Values: TypeAlias = npt.NDArray[np.float64]
    Numbers: TypeAlias = npt.NDArray[np.intp]

#: Palette number of times, not used by memory parts.
INK = 5
PANELS = (("prefill_time_s", "Prefill time"), ("decode_time_s", "Decode step time"))
#: Opacity of the parts of memory where the colour is the chip, in the order of `memory.PARTS`.
SHADES = (1.0, 0.6, 0.35, 0.15)
#: Height of a figure with its panels below each other, as a multiple of the usual one.
STACKED_HEIGHT = 1.7
#: Least width of a bar whose panels stand side by side, in text heights.
MIN_BAR = 1.2


@frozen(eq=False)
class Places:
    """Positions of bars: a group per option value, and in it a bar per chip.

    series: chip of each row ("" if bars are not grouped).  groups: names below the groups.
    x: of each row.  width: of a bar.
    """

    series: list[str]
    groups: list[str]
    x: Values
    width: float

    @property
    def chips(self) -> list[str]:
        """The chips that have a colour each; empty if bars are not grouped."""
        return list(dict.fromkeys(filter(None, self.series)))

    def first(self) -> Numbers:
        """Returns for each row the first of its chip, with which it is compared."""
        return np.array([self.series.index(name) for name in self.series])

    def inks(self) -> list[str]:
        """Returns the colour of each row."""
        return [colour(self.chips.index(name)) if name else colour(INK) for name in self.series]


def places(rows: pd.DataFrame) -> Places:
    """Returns a group per option value if several chips or models have the same ones, else a bar per row."""
    names = [str(name) for name in rows["configuration"]]
    leading = sum(rows[name].nunique() > 1 for name in ("model", "hardware"))
    parts = [name.split(", ") for name in names]
    series = [", ".join(words[:leading]) for words in parts]
    if not leading or min(map(len, parts)) <= leading or len(set(series)) == len(names):
        return Places(series=[""] * len(names), groups=names, x=np.arange(len(names), dtype=float), width=0.75)
    options = [", ".join(words[leading:]).removeprefix("quantization ") for words in parts]
    groups, chips = list(dict.fromkeys(options)), list(dict.fromkeys(series))
    width = 0.84 / len(chips)
    offsets = (np.arange(len(chips)) - (len(chips) - 1) / 2.0) * width
    x = [groups.index(g) + offsets[chips.index(c)] for g, c in zip(options, series, strict=True)]
    return Places(series=series, groups=groups, x=np.array(x), width=0.94 * width)


def picture(results: curves.Results, style: Style) -> Figure:
    """Plots configurations with one point each."""
    return draw(frame(results), style, {name: one.analysis for name, one in curves.each(results)})


def draw(rows: pd.DataFrame, style: Style, analyses: Mapping[str, Any] | None = None) -> Figure:
    """Draws rows of `frame`; panels with many bars stand below each other.

    analyses: of each configuration, whose errors are then known to be those of another one too.
    """
    at, panels = places(rows), len(PANELS) + 1
    crowded = 0.6 * style.size.width / panels * 72.0 / len(rows) < MIN_BAR * style.size.text
    figure, axes = style.figure(panels, 1) if crowded else style.figure(1, panels)
    if crowded:
        figure.set_figheight(STACKED_HEIGHT * style.size.height)
    for one, (y, title) in zip(axes, PANELS, strict=False):
        _times(one, rows, curves.of_time(rows, "", y, title), (at, style), analyses or {})
    _memory(axes[-1], rows, at, style)
    for one in axes:
        bars.names(one, at.groups, style)
        if crowded and one is not axes[-1]:
            one.tick_params(labelbottom=False)
    style.title(figure, curves.common_title(rows))
    style.legend_below(figure, _key(rows, at, style))
    style.settle(figure)
    return figure


def ratios(rows: pd.DataFrame, y: str, first: Numbers, analyses: Mapping[str, Any]) -> Values:
    """Returns times over those of the rows `first`, between the ends of their 80 % intervals, shape (3, rows).

    Errors of kernels that both run on one chip are in neither; a row has none against itself.
    """
    low, high = intervals.ends(rows, y)
    bounds = np.stack([low, rows[y].to_numpy(float), high])
    sources: list[separable.Sources] = [{}] * len(rows)
    if set(rows["configuration"]) <= analyses.keys() and intervals.known(rows, y):
        from llmviewer.result import interval  # ideal times have none

        metric = {"prefill_time_s": "ttft_s", "decode_time_s": "tpot_s"}[y]
        sources = [interval.sources(analyses[name], metric) for name in rows["configuration"]]
    common = [separable.in_common(one, sources[other]) for one, other in zip(sources, first, strict=True)]
    found = separable.ratio(bounds, bounds[:, first], np.array([np.ravel(one)[0] for one in common]))
    found[[0, 2]] = np.where(first == np.arange(len(rows)), np.nan, found[[0, 2]])
    return found


def _times(
    axes: Axes, rows: pd.DataFrame, curve: curves.Curve, where: tuple[Places, Style], analyses: Mapping[str, Any]
) -> None:
    """Draws a bar with interval and value per configuration, hollow if it does not fit in memory.

    Of several configurations it is the time over that of the first one, with which each of the others is compared.
    """
    at, style = where
    upright = ticks.room_for(["0.000"], axes, style) < len(rows)
    seconds, inks, first = rows[curve.y].to_numpy(float), at.inks(), at.first()
    label = curves.axis_label(rows, curve.title, curve.unit)
    words = [fmt.digits(one / curve.scale) for one in seconds]
    low, high = (end / curve.scale for end in intervals.ends(rows, curve.y))
    values = seconds / curve.scale
    names = rows["configuration"].to_numpy()
    if (names != names[first]).any():
        low, values, high = ratios(rows, curve.y, first, analyses)
        words = [
            fmt.times(one) if one != 1.0 else f"{text} {curve.unit}" for one, text in zip(values, words, strict=True)
        ]
        label = f"{curves.axis_label(rows, curve.title, '')}\n(× {at.groups[0]})"
    fills = [ink if fits else style.theme.paper for ink, fits in zip(inks, rows["fits"], strict=True)]
    axes.bar(at.x, values, at.width, color=fills, edgecolor=inks, linewidth=1.0)
    intervals.whiskers(axes, at.x, (low, high), style)
    for x, text, top in zip(at.x, words, np.fmax(values, high), strict=True):
        axes.annotate(
            text, (x, top), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom",
            rotation=90 if upright else 0, fontsize=style.size.text * 0.75, color=style.theme.ink,
        )  # fmt: skip
    axes.yaxis.set_major_formatter(ticks.plain)
    axes.set_ylabel(label)
    axes.margins(y=0.2 if upright else 0.1)
    axes.grid(visible=False, axis="x")


def _memory(axes: Axes, rows: pd.DataFrame, at: Places, style: Style) -> None:
    """Draws stacked bars of memory below lines at the capacities; the colour is the part, or the chip in groups."""
    parts = memory.parts(rows)
    if not at.chips:
        bars.stack(axes, parts, style)
    base = np.zeros(len(rows))
    for part, shade in zip(parts if at.chips else (), SHADES, strict=False):
        axes.bar(at.x, part.sizes, at.width, base, color=at.inks(), alpha=shade, linewidth=0.0)
        base = base + part.sizes
    axes.set_ylabel("Device memory (GiB)")
    axes.grid(visible=False, axis="x")
    capacities = rows["capacity_bytes"].to_numpy(float) / memory.GIB
    if capacities.min() < 3.0 * float(rows["total_bytes"].max()) / memory.GIB:
        half = 0.6 * at.width if not at.chips else 0.5 * at.width
        axes.hlines(capacities, at.x - half, at.x + half, color=style.theme.ink, linewidth=1.4)


def _key(rows: pd.DataFrame, at: Places, style: Style) -> list[Artist]:
    """Returns legend entries: chips if bars are grouped, parts of memory, capacity, hollow bars, whiskers."""
    from matplotlib.patches import Patch

    entries = memory.key(memory.parts(rows), style, fits=bool(rows["fits"].all()), budget=False)
    if at.chips:
        shaded = zip(memory.PARTS.values(), SHADES, strict=True)
        parts = [Patch(facecolor=style.theme.ink, alpha=shade, label=name) for name, shade in shaded]
        chips = [Patch(color=colour(number), label=name) for number, name in enumerate(at.chips)]
        entries = [*chips, *parts, *entries[len(parts) :]]
    return [*entries, intervals.whisker_key(style)] if intervals.known(rows, PANELS[0][0]) else entries
