"""Scales, ticks and labels of plots: round numbers, as many as fit, and labels that do not overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from llmviewer.core.frozen import frozen
from llmviewer.reports.figure import Axis as Declared
from llmviewer.reports.figure import Values
from llmviewer.reports.plots.style import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.text import Text

#: Maximum number of points with a marker and a tick each.
MAX_MARKED_POINTS = 24


def plain(value: float, _: object = None) -> str:
    """Formats a tick without exponent or binary rounding noise: `1,000,000`.

    Formatters of axes are functions with a name, because a figure with a lambda cannot be pickled.
    """
    return f"{value:,.10g}"


def across(axes: Axes, values: Values, style: Style, declared: Declared) -> None:
    """Sets x ticks at the values, as many as fit, or at round numbers if there are many or fractional values."""
    from matplotlib.ticker import NullFormatter

    found = np.unique(values)
    if declared.linear:
        axes.set_xlim(left=0.0)
    elif declared.log(found):
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


def up(axes: Axes, values: Values, declared: Declared) -> None:
    """Sets a logarithmic y axis for a wide range of values, otherwise a linear one from 0."""
    known = values[np.isfinite(values) & (values > 0.0)]
    axes.yaxis.set_major_formatter(plain)
    if declared.log(known):
        axes.set_yscale("log")
        round_ticks(axes.yaxis, known)
    elif len(known):
        axes.set_ylim(0.0, 1.08 * float(axes.dataLim.y1))


Points: TypeAlias = Values
Boxes: TypeAlias = Values
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
#: Further positions of labels with a line.
FAR = tuple(
    (x * side, y, "left" if side > 0 else "right", "center")
    for x, y in ((0.8, 0.35), (0.8, -0.35), (0.65, 1.0), (0.65, -1.0), (0.3, 1.0), (0.3, -1.0))
    for side in (1.0, -1.0)
)
#: Distances of a label, as multiples of PLACES; from the second on, a line connects it to its point.
RINGS = (1.2, 2.4, 3.6, 5.0, 7.0, 9.0, 12.0)
#: Margin around text, in text heights.
MARGIN = 0.08
#: Distance between the points that represent a line [pixel].
LINE_STEP = 8.0
#: Share of a line to a label that others may not cross: several lead to one point.
SHORTENED = 0.9
#: How far text may extend beyond the axes [pixel].
EDGE = 3.0


@frozen
class Label:
    """Text for the point (x, y) in data coordinates; callers list the most important labels first.

    radius: of the marker at the point, beyond which the text begins [point].
    """

    words: str
    x: float
    y: float
    colour: str
    radius: float = 0.0


@dataclass(slots=True, eq=False)
class Space:
    """Occupied boxes inside axes of fixed position and limits: rows of (x0, y0, x1, y1) [pixel].

    texts: those of words among them.  barriers: lines (x0, y0, x1, y1) [pixel] that no line to a label crosses, each
    with the colour of the labels that it holds for, "" for all.
    """

    axes: Axes
    taken: Boxes = field(default_factory=lambda: np.empty((0, 4)))
    texts: Boxes = field(default_factory=lambda: np.empty((0, 4)))
    barriers: list[tuple[str, Points]] = field(default_factory=list)

    @property
    def renderer(self) -> Any:
        """Renderer that measures text."""
        return _renderer(self.axes)

    def keep(self, text: Text) -> bool:
        """Reserves the text's place; removes the text if it overlaps another box or leaves the axes."""
        boxes, free = self.boxes(text), self.axes.get_window_extent().padded(EDGE)
        (x0, y0), (x1, y1) = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
        within = free.x0 <= x0 and x1 <= free.x1 and free.y0 <= y0 and y1 <= free.y1
        if within and not _overlap(boxes, self.taken):
            self.take(boxes)
            self.texts = np.concatenate([self.texts, boxes])
            return True
        text.remove()
        return False

    def take(self, boxes: Boxes) -> None:
        """Reserves boxes without a test."""
        self.taken = np.concatenate([self.taken, boxes])

    def take_points(self, points: Points, radii: Points) -> None:
        """Reserves markers.  points: in data coordinates.  radii: of the markers [point]."""
        if len(points):
            halves = radii * float(self.axes.figure.dpi) / 72.0
            self.take(_squares(self.axes.transData.transform(points), halves[:, None]))

    def take_line(self, start: tuple[float, float], stop: tuple[float, float], barrier: str | None = None) -> None:
        """Reserves a straight line between two points in data coordinates.  barrier: see `barriers`."""
        ends = self.axes.transData.transform([start, stop])
        self.take(_along(ends))
        if barrier is not None:
            self.barriers.append((barrier, ends.ravel()))

    def lead(self, text: Text, x: float, y: float) -> bool:
        """Reserves a text and the line from its centre to (x, y); removes it if the line crosses words or a barrier."""
        box = self.boxes(text)[0]
        ends = np.array([0.5 * (box[:2] + box[2:]), self.axes.transData.transform((x, y))])
        line = _along(ends)
        barriers = [ends for whose, ends in self.barriers if whose in ("", text.get_color())]
        if _overlap(line, self.texts) or _crosses(ends, np.reshape(barriers, (-1, 4))):
            text.remove()
            return False
        if not self.keep(text):
            return False
        self.take(line)
        self.barriers.append(("", np.append(ends[0], ends[0] + SHORTENED * (ends[1] - ends[0]))))
        return True

    def take_legend(self) -> None:
        """Reserves the place of the legend."""
        legend = self.axes.get_legend()
        if legend is not None:
            self.take(np.array([legend.get_window_extent(self.renderer).extents]))

    def boxes(self, text: Text) -> Boxes:
        """Returns the text's box, or squares along a rotated text."""
        from matplotlib.text import Text

        turned = text.get_rotation()
        if turned % 90.0 == 0.0:
            box = Text.get_window_extent(text, self.renderer)
            margin = MARGIN * float(text.get_fontsize()) * float(self.axes.figure.dpi) / 72.0
            return np.array([box.padded(margin).extents])
        text.set_rotation(0.0)
        flat = Text.get_window_extent(text, self.renderer)
        text.set_rotation(turned)
        x, y = text.get_transform().transform(text.get_unitless_position())
        along, half = np.radians(turned), flat.height / 2.0
        steps = np.linspace(half, max(flat.width - half, half), max(int(flat.width / half), 1))
        off = half if text.get_verticalalignment() == "bottom" else -half
        xs = x + steps * np.cos(along) - off * np.sin(along)
        ys = y + steps * np.sin(along) + off * np.cos(along)
        return _squares(np.stack([xs, ys], axis=-1), half)


def _squares(centres: Points, half: float | Points) -> Boxes:
    """Returns squares around centres.  half: half of their width [pixel]."""
    return np.concatenate([centres - half, centres + half], axis=-1)


def _overlap(some: Boxes, others: Boxes) -> bool:
    """Whether any box of `some` overlaps or touches one of `others`."""
    meeting = (some[:, None, :2] <= others[:, 2:]) & (others[:, :2] <= some[:, None, 2:])
    return bool(meeting.all(axis=-1).any())


def _crosses(ends: Points, others: Boxes) -> bool:
    """Whether a line crosses one of the others."""
    (start, stop), firsts, lasts = ends, others[:, :2], others[:, 2:]

    def side(a: Points, b: Points, of: Points) -> Points:
        (x, y), (over, up) = np.moveaxis(b - a, -1, 0), np.moveaxis(of - a, -1, 0)
        found: Points = np.sign(x * up - y * over)
        return found

    apart = side(start, stop, firsts) * side(start, stop, lasts) < 0.0
    return bool((apart & (side(firsts, lasts, start) * side(firsts, lasts, stop) < 0.0)).any())


def _along(ends: Points) -> Boxes:
    """Returns small boxes along a straight line [pixel]."""
    (x0, y0), (x1, y1) = ends
    steps = np.linspace(0.0, 1.0, int(np.hypot(x1 - x0, y1 - y0) / LINE_STEP) + 2)
    return _squares(np.stack([x0 + steps * (x1 - x0), y0 + steps * (y1 - y0)], axis=-1), 0.5)


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
        led = ring > RINGS[0]
        for x, y, horizontal, vertical in (*PLACES, *FAR) if led else PLACES:
            yield x * size * ring, y * size * ring, horizontal, vertical, led


def _drawn(axes: Axes, label: Label, offset: tuple[float, float, str, str, bool], size: float) -> Text:
    """Draws the label at this offset from its point."""
    x, y, horizontal, vertical, led = offset
    beyond = 1.0 + label.radius / np.hypot(x, y)
    line: dict[str, Any] = {"arrowstyle": "-", "color": label.colour, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2}
    text = axes.annotate(
        label.words,
        (label.x, label.y),
        xytext=(x * beyond, y * beyond),
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
