"""Words that do not overlap: each goes to the free place nearest to its point, or nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    Points: TypeAlias = npt.NDArray[np.float64]

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
RINGS = (1.2, 2.4, 3.6, 5.0, 7.0, 9.0, 12.0)
#: Clear paper around words, in units of the text's height.
MARGIN = 0.08
#: Between the points that stand for a line [pixel].
FINE = 8.0
#: How far words may stand out of the axes [pixel].
EDGE = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Words for the point (x, y) of the data; the most important come first."""

    words: str
    x: float
    y: float
    colour: str


@dataclass(slots=True, eq=False)
class Space:
    """The room inside axes whose place and limits stand: what is taken [pixel]."""

    axes: Axes
    taken: list[Bbox] = field(default_factory=list)

    @property
    def renderer(self) -> Any:
        """What measures text."""
        return _renderer(self.axes)

    def keep(self, text: Text) -> bool:
        """Take the text's place, or remove the text: it runs into something, or out of the axes."""
        boxes, inside = self._boxes(text), self.axes.get_window_extent()
        x0, x1 = min(box.x0 for box in boxes), max(box.x1 for box in boxes)
        y0, y1 = min(box.y0 for box in boxes), max(box.y1 for box in boxes)
        free = inside.padded(EDGE)
        within = free.x0 <= x0 and x1 <= free.x1 and free.y0 <= y0 and y1 <= free.y1
        if within and not any(box.overlaps(other) for box in boxes for other in self.taken):
            self.taken += boxes
            return True
        text.remove()
        return False

    def take_points(self, points: Points, radii: Points) -> None:
        """points: of the data.  radii: of their markers [point]."""
        from matplotlib.transforms import Bbox

        if len(points):
            halves = radii * float(self.axes.figure.dpi) / 72.0
            at = self.axes.transData.transform(points)
            self.taken += [Bbox([[x - r, y - r], [x + r, y + r]]) for (x, y), r in zip(at, halves, strict=True)]

    def take_line(self, start: tuple[float, float], stop: tuple[float, float]) -> None:
        """A straight line between two points of the data, which words had better not cross."""
        from matplotlib.transforms import Bbox

        (x0, y0), (x1, y1) = self.axes.transData.transform([start, stop])
        steps = np.linspace(0.0, 1.0, int(np.hypot(x1 - x0, y1 - y0) / FINE) + 2)
        for x, y in zip(x0 + steps * (x1 - x0), y0 + steps * (y1 - y0), strict=True):
            self.taken.append(Bbox([[x - 0.5, y - 0.5], [x + 0.5, y + 0.5]]))

    def take_legend(self) -> None:
        """The key's place."""
        legend = self.axes.get_legend()
        if legend is not None:
            self.taken.append(legend.get_window_extent(self.renderer))

    def _boxes(self, text: Text) -> list[Bbox]:
        """The text's box; of rotated words squares along them."""
        from matplotlib.text import Text
        from matplotlib.transforms import Bbox

        turned = text.get_rotation()
        if turned % 90.0 == 0.0:
            box = Text.get_window_extent(text, self.renderer)
            return [box.padded(MARGIN * float(text.get_fontsize()) * float(self.axes.figure.dpi) / 72.0)]
        text.set_rotation(0.0)
        flat = Text.get_window_extent(text, self.renderer)
        text.set_rotation(turned)
        x, y = text.get_transform().transform(text.get_unitless_position())
        along, half = np.radians(turned), flat.height / 2.0
        steps = np.linspace(half, max(flat.width - half, half), max(int(flat.width / half), 1))
        off = half if text.get_verticalalignment() == "bottom" else -half
        xs = x + steps * np.cos(along) - off * np.sin(along)
        ys = y + steps * np.sin(along) + off * np.cos(along)
        return [Bbox([[a - half, b - half], [a + half, b + half]]) for a, b in zip(xs, ys, strict=True)]


def _renderer(axes: Axes) -> Any:
    """Of a canvas that draws points, which every figure of `Style` has."""
    canvas: Any = axes.figure.canvas
    return canvas.get_renderer()


def place(space: Space, labels: Sequence[Label], size: float, rings: Sequence[float] = RINGS) -> list[str]:
    """Draw the labels that find room inside the axes, one after another; the words of those that do not.

    rings: of RINGS those that may be gone to.
    """
    lost = []
    for label in labels:
        if not any(space.keep(_drawn(space.axes, label, offset, size)) for offset in _offsets(size, rings)):
            lost.append(label.words)
    return lost


def _offsets(size: float, rings: Sequence[float]) -> Iterator[tuple[float, float, str, str, bool]]:
    """Offsets [point], alignments, and whether a line leads to the point."""
    for ring in rings:
        for x, y, horizontal, vertical in PLACES:
            yield x * size * ring, y * size * ring, horizontal, vertical, ring > RINGS[0]


def _drawn(axes: Axes, label: Label, offset: tuple[float, float, str, str, bool], size: float) -> Text:
    """The label at this offset from its point."""
    x, y, horizontal, vertical, led = offset
    line: dict[str, Any] = {"arrowstyle": "-", "color": label.colour, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2}
    text = axes.annotate(
        label.words,
        (label.x, label.y),
        xytext=(x, y),
        textcoords="offset points",
        ha=horizontal,
        va=vertical,
        fontsize=size,
        color=label.colour,
        zorder=6,
        arrowprops=line if led else None,
    )
    text.update_positions(_renderer(axes))
    return text
