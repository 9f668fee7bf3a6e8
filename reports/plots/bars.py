"""Stacked bars whose parts differ by colour and hatching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.core.frozen import frozen
from llmviewer.reports.plots import ticks
from llmviewer.reports.plots.style import PALETTE, Style, colour

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy.typing as npt
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    Values: TypeAlias = npt.NDArray[np.float64]

#: Hatching of parts beyond the length of the palette.
HATCHES = ("", "///", "...", "xxx")
#: Name of the sum of the smallest parts.
OTHER = "other"


@frozen
class BarPart:
    """One part of every bar: its name, its size in each bar, its number in the palette."""

    name: str
    sizes: Values
    number: int

    def look(self, style: Style) -> dict[str, Any]:
        """Returns colour and hatching."""
        hatch = HATCHES[self.number // len(PALETTE) % len(HATCHES)]
        return {"facecolor": colour(self.number), "hatch": hatch, "edgecolor": style.theme.paper, "linewidth": 0.5}


def parts(table: pd.DataFrame, most: int) -> list[BarPart]:
    """Returns the parts of a table (bars x parts), largest first; those beyond `most` are summed."""
    order = table.abs().sum().sort_values(ascending=False).index
    kept = [name for name in order if name != OTHER][: most if len(order) <= most else most - 1]
    found = [
        BarPart(name=str(name), sizes=table[name].to_numpy(float), number=_number(at)) for at, name in enumerate(kept)
    ]
    rest = [name for name in order if name not in kept]
    if rest:
        found.append(BarPart(name=OTHER, sizes=table[rest].sum(axis=1).to_numpy(float), number=len(PALETTE) - 1))
    return found


def _number(at: int) -> int:
    """Returns the palette number of a part; the last colour is reserved for `OTHER`."""
    rounds, own = divmod(at, len(PALETTE) - 1)
    return rounds * len(PALETTE) + own


def stack(axes: Axes, stacked: Sequence[BarPart], style: Style, width: float = 0.75) -> None:
    """Draws vertical stacked bars; negative parts extend below 0."""
    up = down = np.zeros(len(stacked[0].sizes))
    for part in stacked:
        base = np.where(part.sizes >= 0.0, up, down)
        look = part.look(style) | ({"linewidth": 0.0} if width >= 1.0 else {})
        axes.bar(np.arange(len(base)), part.sizes, width, base, **look)
        up, down = up + np.maximum(part.sizes, 0.0), down + np.minimum(part.sizes, 0.0)
    axes.grid(visible=False, axis="x")


def handles(stacked: Sequence[BarPart], style: Style) -> list[Artist]:
    """Returns legend entries."""
    from matplotlib.patches import Patch

    return [Patch(label=part.name, **part.look(style)) for part in stacked]


def names(axes: Axes, words: Sequence[str], style: Style) -> None:
    """Labels the bars with wrapped names; where they are long, every second one stands a line lower."""
    from textwrap import fill

    room = 0.8 * style.size.width / ticks.columns(axes) * 72.0 / (0.6 * style.size.text * max(len(words), 1))
    apart = [word.replace("/", "/ ").replace("_", "_ ") for word in words]
    longest = max((len(part) for word in apart for part in word.replace("-", "- ").split()), default=0)
    low = longest > room and len(words) > 1
    width = int(max((2.0 if low else 1.0) * room, 3.0))
    shown = [fill(word, width).replace("_ ", "_").replace("/ ", "/") for word in apart]
    tallest = max((text.count("\n") for text in shown[::2]), default=0) + 1
    axes.set_xticks(np.arange(len(words)), [low * at % 2 * tallest * "\n" + text for at, text in enumerate(shown)])
