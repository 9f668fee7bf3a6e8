"""A figure in our own words: panels of lines and limits.  `plots/drawing.py` draws them with matplotlib,
`html/drawing.py` with Plotly.  Colours, markers and dashes follow from the number of a line, so that both agree."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from llmviewer.core.frozen import frozen

Values: TypeAlias = npt.NDArray[np.float64]
#: Largest over smallest value of an axis above which it is logarithmic.
LOG_SCALE_RATIO = 8.0


@frozen
class Axis:
    """An axis of a panel.  linear: starts at zero whatever its values span; logarithmic: whatever they span."""

    title: str
    linear: bool = False
    logarithmic: bool = False

    def log(self, values: Values) -> bool:
        """Whether the axis is logarithmic for these values."""
        known = values[np.isfinite(values) & (values > 0.0)]
        wide = self.logarithmic or (len(known) > 0 and known.max() > LOG_SCALE_RATIO * known.min())
        return wide and not self.linear


@frozen(eq=False)
class Line:
    """A series of points, in the units of the axes.

    number: its colour, marker and dashes.  fits: whether each point fits in memory.  band: both ends of an interval
    around every point, NaN where unknown.  words: text of each point.
    """

    name: str
    number: int
    x: Values
    y: Values
    fits: npt.NDArray[np.bool_] | None = None
    band: tuple[Values, Values] | None = None
    words: tuple[str, ...] = ()


@frozen
class Limit:
    """A straight line across the panel: level, or upright.  rank: its dashes, those of the first limit for 0."""

    name: str
    at: float
    upright: bool = False
    rank: int = 0


@frozen(eq=False)
class Panel:
    """Lines and limits over two axes."""

    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    limits: tuple[Limit, ...] = ()

    def along(self, name: str) -> Values:
        """All values of an axis, `x` or `y`."""
        return np.concatenate([getattr(line, name) for line in self.lines])
