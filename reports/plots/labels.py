"""Labels that do not overlap: each is placed at the free position nearest to its point, or omitted."""

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

#: Positions of a label relative to its point: (x, y, horizontal, vertical alignment), in text heights.
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
#: Distances of a label, as multiples of PLACES; from the second on, a line connects it to its point.
RINGS = (1.2, 2.4, 3.6, 5.0, 7.0, 9.0, 12.0)
#: Margin around text, in text heights.
MARGIN = 0.08
#: Distance between the points that represent a line [pixel].
LINE_STEP = 8.0
#: How far text may extend beyond the axes [pixel].
EDGE = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Text for the point (x, y) in data coordinates; callers list the most important labels first."""

    words: str
    x: float
    y: float
    colour: str


@dataclass(slots=True, eq=False)
class Space:
    """Occupied boxes inside axes of fixed position and limits [pixel].  texts: those of words among them."""

    axes: Axes
    taken: list[Bbox] = field(default_factory=list)
    texts: list[Bbox] = field(default_factory=list)

    @property
    def renderer(self) -> Any:
        """Renderer that measures text."""
        return _renderer(self.axes)

    def keep(self, text: Text) -> bool:
        """Reserves the text's place; removes the text if it overlaps another box or leaves the axes."""
        boxes, inside = self._boxes(text), self.axes.get_window_extent()
        x0, x1 = min(box.x0 for box in boxes), max(box.x1 for box in boxes)
        y0, y1 = min(box.y0 for box in boxes), max(box.y1 for box in boxes)
        free = inside.padded(EDGE)
        within = free.x0 <= x0 and x1 <= free.x1 and free.y0 <= y0 and y1 <= free.y1
        if within and not any(box.overlaps(other) for box in boxes for other in self.taken):
            self.taken += boxes
            self.texts += boxes
            return True
        text.remove()
        return False

    def take_points(self, points: Points, radii: Points) -> None:
        """Reserves markers.  points: in data coordinates.  radii: of the markers [point]."""
        from matplotlib.transforms import Bbox

        if len(points):
            halves = radii * float(self.axes.figure.dpi) / 72.0
            at = self.axes.transData.transform(points)
            self.taken += [Bbox([[x - r, y - r], [x + r, y + r]]) for (x, y), r in zip(at, halves, strict=True)]

    def take_line(self, start: tuple[float, float], stop: tuple[float, float]) -> None:
        """Reserves a straight line between two points in data coordinates."""
        self.taken += _along(self.axes.transData.transform([start, stop]))

    def lead(self, text: Text, x: float, y: float) -> bool:
        """Reserves a text and the line from its centre to (x, y); removes it if the line would strike through words."""
        box = self._boxes(text)[0]
        centre = (0.5 * (box.x0 + box.x1), 0.5 * (box.y0 + box.y1))
        line = _along(np.array([centre, self.axes.transData.transform((x, y))]))
        if any(one.overlaps(words) for one in line for words in self.texts):
            text.remove()
            return False
        if not self.keep(text):
            return False
        self.taken += line
        return True

    def take_legend(self) -> None:
        """Reserves the place of the legend."""
        legend = self.axes.get_legend()
        if legend is not None:
            self.taken.append(legend.get_window_extent(self.renderer))

    def _boxes(self, text: Text) -> list[Bbox]:
        """Returns the text's box, or squares along a rotated text."""
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


def _along(ends: Points) -> list[Bbox]:
    """Returns small boxes along a straight line [pixel]."""
    from matplotlib.transforms import Bbox

    (x0, y0), (x1, y1) = ends
    steps = np.linspace(0.0, 1.0, int(np.hypot(x1 - x0, y1 - y0) / LINE_STEP) + 2)
    return [
        Bbox([[x - 0.5, y - 0.5], [x + 0.5, y + 0.5]])
        for x, y in zip(x0 + steps * (x1 - x0), y0 + steps * (y1 - y0), strict=True)
    ]


def _renderer(axes: Axes) -> Any:
    """Returns the renderer of the Agg canvas that every figure of `Style` has."""
    canvas: Any = axes.figure.canvas
    return canvas.get_renderer()


def place(space: Space, labels: Sequence[Label], size: float, rings: Sequence[float] = RINGS) -> list[str]:
    """Draws the labels that fit inside the axes, in order; returns the text of those that do not.

    rings: allowed distances, from RINGS.
    """
    lost = []
    for label in labels:
        if not any(_placed(space, label, offset, size) for offset in _offsets(size, rings)):
            lost.append(label.words)
    return lost


def _placed(space: Space, label: Label, offset: tuple[float, float, str, str, bool], size: float) -> bool:
    """Whether the label has room at this offset, where it is drawn then."""
    text = _drawn(space.axes, label, offset, size)
    return space.lead(text, label.x, label.y) if offset[4] else space.keep(text)


def _offsets(size: float, rings: Sequence[float]) -> Iterator[tuple[float, float, str, str, bool]]:
    """Yields offsets [point], alignments, and whether a line connects the label to its point."""
    for ring in rings:
        for x, y, horizontal, vertical in PLACES:
            yield x * size * ring, y * size * ring, horizontal, vertical, ring > RINGS[0]


def _drawn(axes: Axes, label: Label, offset: tuple[float, float, str, str, bool], size: float) -> Text:
    """Draws the label at this offset from its point."""
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
