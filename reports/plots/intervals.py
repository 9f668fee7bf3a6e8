"""80 % intervals of times and rates: bands along curves, whiskers on bars, and their legend entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from llmviewer.reports.plots.style import Style

Values: TypeAlias = npt.NDArray[np.float64]
#: Configurations above which bands would cover each other and are left out.
MAX_BANDS = 5
NAME = "80 % interval"


def ends(rows: pd.DataFrame | Mapping[str, Sequence[Any]], name: str) -> tuple[Values, Values]:
    """Returns both ends of the 80 % interval of a time or an output rate; NaN where times are not calibrated.

    rows: a frame, or lists by name.  A rate is output tokens over E2E, so its interval is that of E2E, inverted.
    """
    time = "e2e_s" if "tokens_per_s" in name else name
    columns = [f"{time.removesuffix('_s')}_{end}80_s" for end in ("low", "high")]
    missing = np.full(len(rows[name]), np.nan)
    low, high = (np.asarray(rows[one], dtype=float) if one in rows else missing for one in columns)
    if time == name:
        return low, high
    tokens = np.asarray(rows[name], dtype=float) * np.asarray(rows[time], dtype=float)
    known = low > 0.0
    return np.where(known, tokens / high, np.nan), np.where(known, tokens / np.where(known, low, 1.0), np.nan)


def known(rows: pd.DataFrame, name: str) -> bool:
    """Whether any row has the interval of this column."""
    return bool(np.isfinite(ends(rows, name)[0]).any())


def banded(rows: pd.DataFrame, name: str) -> bool:
    """Whether bands of this column are drawn: it has intervals, and few enough configurations overlap."""
    return rows["configuration"].nunique() <= MAX_BANDS and known(rows, name)


def band(axes: Axes, x: Values, bounds: tuple[Values, Values], colour: str) -> None:
    """Draws a band along a curve, if its interval is known."""
    if np.isfinite(bounds[0]).any():
        axes.fill_between(x, *bounds, color=colour, alpha=0.2, linewidth=0)


def whiskers(axes: Axes, x: Values, bounds: tuple[Values, Values], style: Style) -> None:
    """Draws a vertical line per bar from the low to the high end of its interval."""
    shown = np.isfinite(bounds[0])
    axes.vlines(x[shown], bounds[0][shown], bounds[1][shown], color=style.theme.ink, linewidth=1.2, zorder=3)


def band_key(style: Style) -> Artist:
    """Returns the legend entry of bands."""
    from matplotlib.patches import Patch

    return Patch(color=style.theme.ink, alpha=0.2, label=NAME)


def whisker_key(style: Style) -> Artist:
    """Returns the legend entry of whiskers: a short upright line."""
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], linestyle="", marker="|", markersize=style.size.text, markeredgewidth=1.2,
        markeredgecolor=style.theme.ink, label=NAME,
    )  # fmt: skip
