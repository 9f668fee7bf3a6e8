"""Roofs of a roofline: a diagonal per memory, a horizontal per unit, their names on them, ridges, tinted zones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reports import format as fmt
from reports.plots.style import Style, colour, dashes

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy.typing as npt
    import pandas as pd
    from matplotlib.axes import Axes

    Points: TypeAlias = npt.NDArray[np.float64]


def roofs(axes: Axes, over: pd.DataFrame, at: tuple[int, int, Points], main: float, style: Style) -> None:
    """The roofs of one chip.  at: its number, how many there are, and points that words keep clear of.  main: the rate
    of the units that compute most [FLOP/s]; the others stand back."""
    number, chips, points = at
    memories, units = (over[over["roof"] == roof].sort_values("rate") for roof in ("memory", "compute"))
    device = float(memories["rate"].iloc[0])
    ink = style.theme.ink if chips == 1 else colour(number)
    name = "" if chips == 1 else f"{over['hardware'].iloc[0]} "
    if chips == 1:
        _zones(axes, main / device, style)
    for memory in memories.itertuples():
        _diagonal(axes, (memory.rate, main, f"{name}{memory.what} {fmt.bandwidth(memory.rate)}"), (ink, points), style)
    for unit in units.itertuples():
        most = unit.rate == main
        if most or chips == 1:
            look = (ink, dashes(0)) if most else (style.theme.faint, dashes(1))
            _horizontal(axes, (unit.rate, device, f"{name}{unit.what} {fmt.flops_per_s(unit.rate)}"), look, style)
    _ridge(axes, main / device, main, ink, style)


def _zones(axes: Axes, ridge: float, style: Style) -> None:
    """Left of the ridge memory bounds, right of it arithmetic."""
    low, high = axes.get_xlim()
    for start, stop, tint, words in (
        (low, ridge, style.theme.memory_zone, "memory-bound"),
        (ridge, high, style.theme.compute_zone, "compute-bound"),
    ):
        axes.axvspan(start, stop, color=tint, zorder=0, linewidth=0)
        middle = float(np.sqrt(max(start, low) * min(stop, high)))
        axes.text(
            middle, 0.02, words, transform=axes.get_xaxis_transform(), ha="center", va="bottom", style="italic",
            fontsize=style.size.text * 0.9, color=style.theme.ink, alpha=0.7,
        )  # fmt: skip


def _diagonal(axes: Axes, memory: tuple[float, float, str], look: tuple[str, Points], style: Style) -> None:
    """rate, the roof it ends at, and its words along it, where they are far from the points of `look`."""
    (rate, roof, words), (ink, points) = memory, look
    low, _ = axes.get_xlim()
    axes.plot([low, roof / rate], [low * rate, roof], color=ink, linewidth=1.4, zorder=2)
    start = max(low, axes.get_ylim()[0] / rate)
    x = _freest(np.geomspace(start * 1.3, max(roof / rate / 12.0, start * 1.4), 24), rate, points)
    (x0, y0), (x1, y1) = axes.transData.transform([(x, x * rate), (2.0 * x, 2.0 * x * rate)])
    axes.text(
        x, x * rate * 1.15, words, rotation=float(np.degrees(np.arctan2(y1 - y0, x1 - x0))), rotation_mode="anchor",
        ha="left", va="bottom", fontsize=style.size.text * 0.85, color=ink, zorder=6,
    )  # fmt: skip


def _freest(places: Points, rate: float, points: Points) -> float:
    """Of the places along a diagonal the one whose surroundings, on log scales, hold no point for longest."""
    if not len(points):
        return float(places[len(places) // 2])
    along = np.log(places * 2.5)[:, None] - np.log(points[:, 0])
    above = np.log(places * 2.5 * rate)[:, None] - np.log(points[:, 1])
    return float(places[np.argmax(np.hypot(along, above).min(axis=1))])


def _horizontal(axes: Axes, unit: tuple[float, float, str], look: tuple[str, str], style: Style) -> None:
    """rate, the bandwidth of device memory, and its words above its right end."""
    (rate, device, words), (ink, dash) = unit, look
    _, high = axes.get_xlim()
    axes.plot([rate / device, high], [rate, rate], color=ink, linestyle=dash, linewidth=1.4, zorder=2)
    axes.text(
        high, rate * 1.06, words, ha="right", va="bottom", fontsize=style.size.text * 0.85,
        color=style.theme.ink, zorder=6,
    )  # fmt: skip


def _ridge(axes: Axes, ridge: float, roof: float, ink: str, style: Style) -> None:
    """Where the memory's roof meets that of the units."""
    axes.plot([ridge, ridge], [axes.get_ylim()[0], roof], color=ink, linestyle=":", linewidth=0.9, zorder=2)
    axes.annotate(
        f"ridge {fmt.intensity(ridge)} FLOP/B", (ridge, axes.get_ylim()[0]), xytext=(3, 4), rotation=90,
        textcoords="offset points", ha="left", va="bottom", fontsize=style.size.text * 0.8, color=ink, zorder=6,
    )  # fmt: skip
