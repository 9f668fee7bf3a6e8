"""Labels that do not overlap: each goes to the free place nearest to its point, or nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

#: Where a label may stand relative to its point: (x, y, horizontal, vertical alignment), in units of the text's height.
PLACES = (
    (0.7, 0.0, "left", "center"),
    (-0.7, 0.0, "right", "center"),
    (0.0, 0.8, "center", "bottom"),
    (0.0, -0.8, "center", "top"),
    (0.6, 0.7, "left", "bottom"),
    (-0.6, 0.7, "right", "bottom"),
    (0.6, -0.7, "left", "top"),
    (-0.6, -0.7, "right", "top"),
)
#: How far out a label may go, in multiples of those places; from the second on a line leads to its point.
RINGS = (1.2, 2.4, 3.6, 5.0, 7.0, 9.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Words for the point (x, y) of the data; the most important come first."""

    words: str
    x: float
    y: float


def place(axes: Axes, labels: Sequence[Label], colour: str, size: float) -> list[str]:
    """Draw the labels that find room inside the axes, one after another; the words of those that do not.

    The limits of the axes have to stand.  Kept clear of: texts that are there already, the key, and the points.
    """
    figure = axes.figure
    figure.draw_without_rendering()  # type: ignore[union-attr]
    renderer = figure.canvas.get_renderer()  # type: ignore[union-attr]
    others = [*(text for text in axes.texts if text.get_text()), *filter(None, [axes.get_legend()])]
    taken = [other.get_window_extent(renderer) for other in others]
    taken += _around(axes, labels, size)
    inside = axes.get_window_extent(renderer)
    lost = []
    for label in labels:
        if not any(_fits(axes, label, offset, (colour, size), taken, inside) for offset in _offsets(size)):
            lost.append(label.words)
    return lost


def _around(axes: Axes, labels: Sequence[Label], size: float) -> list[Bbox]:
    """What the points themselves cover, about."""
    from matplotlib.transforms import Bbox

    half = 0.3 * size * float(axes.figure.dpi) / 72.0
    points = axes.transData.transform([(label.x, label.y) for label in labels]) if labels else []
    return [Bbox.from_bounds(x - half, y - half, 2.0 * half, 2.0 * half) for x, y in points]


def _offsets(size: float) -> Iterator[tuple[float, float, str, str, bool]]:
    """Offsets [point], alignments, and whether a line leads to the point."""
    for ring in RINGS:
        for x, y, horizontal, vertical in PLACES:
            yield x * size * ring, y * size * ring, horizontal, vertical, ring > RINGS[0]


def _fits(
    axes: Axes,
    label: Label,
    offset: tuple[float, float, str, str, bool],
    look: tuple[str, float],
    taken: list[Bbox],
    inside: Bbox,
) -> bool:
    """Draw the label there if nothing is in the way; `taken` gets its box."""
    from matplotlib.text import Text

    x, y, horizontal, vertical, led = offset
    colour, size = look
    line = {"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2}
    text = axes.annotate(
        label.words,
        (label.x, label.y),
        xytext=(x, y),
        textcoords="offset points",
        ha=horizontal,
        va=vertical,
        fontsize=size,
        color=colour,
        arrowprops=line if led else None,  # type: ignore[arg-type]
    )
    text.update_positions(axes.figure.canvas.get_renderer())  # type: ignore[union-attr]
    box = Text.get_window_extent(text, axes.figure.canvas.get_renderer())  # type: ignore[union-attr]
    free = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
    if free and not any(box.overlaps(other) for other in taken):
        taken.append(box)
        return True
    text.remove()
    return False
