"""Roofs of a roofline: a diagonal per memory, a horizontal line per unit, labels, ridges, tinted zones."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.core.frozen import frozen
from llmviewer.reports import format as fmt
from llmviewer.reports.plots.style import Style, dashes
from llmviewer.reports.plots.ticks import Space, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


#: Allowed positions of a name along a diagonal, as shares of its length.
ALONG = (0.0, 0.03, 0.06, 0.09, 0.12, 0.18, 0.24, 0.3, 0.36, 0.42, 0.5, 0.6, 0.7)

#: Allowed ends of a name on a horizontal line: share of its length, factor of its height, vertical alignment.
PLACES = ((1.0, 1.05, "bottom"), (1.0, 0.95, "top"), (0.75, 1.05, "bottom"), (0.5, 1.05, "bottom"), (0.5, 0.95, "top"))
#: Units that no model uses.
UNUSED = "fp64"


@frozen(eq=False)
class Roofs:
    """The roofs of one chip.

    rows: `roof`, `what`, `rate`, from Result.roofs().  main: rate of the units that compute most [FLOP/s]; others are
    drawn faintly.  chips: number of chips in the plot.  ink: colour.
    """

    rows: pd.DataFrame
    main: float
    chips: int
    ink: str

    def names(self, name: str, rate: str) -> tuple[str, ...]:
        """Returns the name of a roof and shorter ones, with the chip if there are several and room for it."""
        chip = "" if self.chips == 1 else f"{self.rows['hardware'].iloc[0]} "
        shorter = name.removeprefix("tensor ").removeprefix("device ")
        return f"{chip}{name} {rate}", f"{chip}{shorter} {rate}", f"{chip}{rate}", *([rate] if chip else [])

    def select(self, roof: str) -> list[tuple[str, float]]:
        """Returns names and rates of one kind of roof, lowest first."""
        found = self.rows[(self.rows["roof"] == roof) & ~self.rows["what"].str.endswith(UNUSED)].sort_values("rate")
        return list(zip(found["what"].astype(str), found["rate"].astype(float), strict=True))

    @property
    def ridge(self) -> float:
        """Intensity at which device memory and main units meet [FLOP/byte]."""
        return self.main / self.select("memory")[0][1]


def scales(axes: Axes, across: tuple[float, float], up: tuple[float, float]) -> None:
    """Sets log scales and axis labels.  across: x limits [FLOP/byte].  up: y limits [FLOP/s]."""
    axes.set(xscale="log", yscale="log", xlim=across, ylim=up)
    axes.set_xlabel("Arithmetic intensity (FLOP/byte)")
    axes.set_ylabel("Performance (TFLOP/s)")
    axes.yaxis.set_major_formatter(_tera)
    axes.xaxis.set_major_formatter(plain)


def _tera(value: float, _: object) -> str:
    """Formats a tick in 1e12."""
    return f"{value / 1e12:g}"


def draw(space: Space, roofs: Roofs, style: Style) -> None:
    """Draws all roofs that have room for their names."""
    ink = roofs.ink
    if roofs.chips == 1:
        _zones(space.axes, roofs.ridge, style)
    units = sorted(roofs.select("compute"), key=lambda unit: unit[1] != roofs.main)
    for name, rate in units:
        if rate == roofs.main:
            _horizontal(space, (roofs.names(name, fmt.flops_per_s(rate)), rate, roofs), (ink, dashes(0)), style)
    memories = roofs.select("memory")
    for level, (name, rate) in enumerate(memories if roofs.chips == 1 else memories[:1]):
        names = roofs.names(name, fmt.bandwidth(rate))
        _diagonal(space, (names, rate, roofs.main), (ink, dashes(level)), style)
    if roofs.chips == 1:
        for name, rate in units:
            if rate != roofs.main:
                look = (style.theme.faint, dashes(1))
                _horizontal(space, (roofs.names(name, fmt.flops_per_s(rate))[:1], rate, roofs), look, style)
    _ridge(space, roofs, ink, style)


def label_zones(space: Space, ridge: float, style: Style) -> None:
    """Labels the memory-bound and compute-bound zones near the x axis."""
    axes = space.axes
    low, high = axes.get_xlim()
    for start, stop, words in ((low, ridge, "memory-bound"), (ridge, high, "compute-bound")):
        middle = float(np.sqrt(max(start, low) * min(stop, high))) if start < stop else low
        for height in (0.02, 0.08, 0.14):
            text = axes.text(
                middle, height, words, transform=axes.get_xaxis_transform(), ha="center", va="bottom", style="italic",
                fontsize=style.size.text * 0.9, color=style.theme.ink, alpha=0.7,
            )  # fmt: skip
            if space.keep(text):
                break


def _zones(axes: Axes, ridge: float, style: Style) -> None:
    """Tints the memory-bound zone left of the ridge and the compute-bound zone right of it."""
    low, high = axes.get_xlim()
    for start, stop, tint in ((low, ridge, style.theme.memory_zone), (ridge, high, style.theme.compute_zone)):
        axes.axvspan(start, stop, color=tint, zorder=0, linewidth=0)


def _diagonal(space: Space, memory: tuple[tuple[str, ...], float, float], look: tuple[str, str], style: Style) -> None:
    """Draws a diagonal up to its roof, with a name along it where there is room.  memory: names, rate, roof."""
    (names, rate, roof), (ink, dash), axes = memory, look, space.axes
    (low, _), (bottom, _) = axes.get_xlim(), axes.get_ylim()
    (drawn,) = axes.plot([low, roof / rate], [low * rate, roof], color=ink, linestyle=dash, linewidth=1.4, zorder=2)
    start, stop = 1.1 * max(low, bottom / rate), roof / rate
    (x0, y0), (x1, y1) = axes.transData.transform([(start, start * rate), (stop, stop * rate)])
    turned = float(np.degrees(np.arctan2(y1 - y0, x1 - x0)))
    for words, (factor, vertical), share in product(names, ((1.1, "bottom"), (0.88, "top")), ALONG):
        x = start * (stop / start) ** share
        text = axes.text(
            x, x * rate * factor, words, rotation=turned, rotation_mode="anchor", ha="left", va=vertical,
            fontsize=style.size.text * 0.8, color=ink, zorder=6,
        )  # fmt: skip
        if space.keep(text):
            return
    if dash != dashes(0):
        drawn.remove()  # a roof without a name is meaningless


def _horizontal(space: Space, unit: tuple[tuple[str, ...], float, Roofs], look: tuple[str, str], style: Style) -> None:
    """Draws a horizontal roof with a name at its right end, above or below.  unit: names, rate, roofs."""
    (names, rate, roofs), (ink, dash), axes = unit, look, space.axes
    _, high = axes.get_xlim()
    start = rate / roofs.select("memory")[0][1]
    named = False
    for words, (share, factor, vertical) in product(names, PLACES):
        text = axes.text(
            start * (high / start) ** share, rate * factor, words, ha="right", va=vertical,
            fontsize=style.size.text * 0.8, color=ink if roofs.chips > 1 else style.theme.ink, zorder=6,
        )  # fmt: skip
        named = space.keep(text)
        if named:
            break
    if named or rate == roofs.main:
        axes.plot([start, high], [rate, rate], color=ink, linestyle=dash, linewidth=1.4, zorder=2)


def _ridge(space: Space, roofs: Roofs, ink: str, style: Style) -> None:
    """Draws and labels the ridge, at which memory and compute roofs meet."""
    axes, ridge = space.axes, roofs.ridge
    bottom, _ = axes.get_ylim()
    axes.plot([ridge, ridge], [bottom, roofs.main], color=ink, linestyle=":", linewidth=0.9, zorder=2)
    for height, (side, across) in product((0.03, 0.12, 0.22, 0.32), ((0.4, "left"), (-0.4, "right"))):
        text = axes.annotate(
            f"ridge {fmt.intensity(ridge)} FLOP/B", (ridge, height), xycoords=axes.get_xaxis_transform(),
            xytext=(style.size.text * side, 0), textcoords="offset points", rotation=90, ha=across, va="bottom",
            fontsize=style.size.text * 0.8, color=ink, zorder=6,
        )  # fmt: skip
        text.update_positions(space.renderer)
        if space.keep(text):
            return


def reserve_ridge(space: Space, roofs: Roofs) -> None:
    """Reserves the ridge, so that no label crosses it."""
    space.take_line((roofs.ridge, space.axes.get_ylim()[0]), (roofs.ridge, roofs.main))


def reserve_main_roofs(space: Space, roofs: Roofs) -> None:
    """Reserves the main roofs, so that no later label crosses them."""
    (low, high), (bottom, _), ridge = space.axes.get_xlim(), space.axes.get_ylim(), roofs.ridge
    device = roofs.main / ridge
    start = max(low, bottom / device)
    whose = roofs.ink if roofs.chips > 1 else ""
    space.take_line((start, start * device), (ridge, roofs.main), whose)
    space.take_line((ridge, roofs.main), (high, roofs.main), whose)
