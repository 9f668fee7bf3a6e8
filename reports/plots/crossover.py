"""Map of the best configuration over batch size and context length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports.plots.style import Style, colour
from llmviewer.result.crossover import CROSSOVER_METRICS, NO_WINNER, Crossover

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Largest side of a map whose cells show letters [cells].
MAX_LETTERED = 16


#: Opacity of a point where one configuration wins, and where its interval overlaps that of another.
ALPHA, TIED_ALPHA = 0.8, 0.35


def picture(found: Crossover, style: Style, title: str = "") -> Figure:
    """Plots a map.  title: common properties of its configurations."""
    return draw(found, style, title)


def draw(found: Crossover, style: Style, title: str = "") -> Figure:
    """Draws the winners (context lengths x batch sizes)."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    figure, (axes,) = style.figure()
    winner = found.winner.astype(int)
    there = [at for at in range(len(found.names)) if (winner == at).any()]
    inks = [style.theme.faint, *(colour(at) for at in range(len(found.names)))]
    axes.imshow(
        winner + 1, origin="lower", aspect="auto", interpolation="nearest", cmap=ListedColormap(inks), vmin=-0.5,
        vmax=len(inks) - 0.5, alpha=np.where(found.tied, TIED_ALPHA, ALPHA),
    )  # fmt: skip
    axes.grid(visible=False)
    _axis(figure, found, style)
    if max(winner.shape) <= MAX_LETTERED:
        for (row, column), at in np.ndenumerate(winner):
            if at != NO_WINNER:
                first = "a" if found.tied[row, column] else "A"
                axes.text(
                    column, row, chr(ord(first) + at), ha="center", va="center", color=style.theme.ink,
                    fontsize=style.size.text * 0.8,
                )  # fmt: skip
    lowest = f"lowest {CROSSOVER_METRICS[found.metric].title}"
    style.title(figure, ", ".join(filter(None, (title, lowest, found.efficiency, found.engine))))
    entries = [Patch(color=colour(at), alpha=ALPHA, label=f"{chr(ord('A') + at)}  {found.names[at]}") for at in there]
    if (winner == NO_WINNER).any():
        entries.append(Patch(color=style.theme.faint, alpha=ALPHA, label="no configuration fits in memory"))
    if found.tied.any():
        entries.append(Patch(color=style.theme.ink, alpha=TIED_ALPHA, label="pale: 80 % intervals overlap"))
    style.legend_below(figure, entries, least=1)
    style.settle(figure)
    return figure


def _axis(figure: Figure, found: Crossover, style: Style) -> None:
    """Sets ticks at the sizes, as many as fit."""
    (axes,) = figure.axes
    batches = [f"{int(size):,}" for size in found.batch_sizes]
    for axis, names, words, inches in (
        (axes.xaxis, batches, "Batch size (sequences)", style.size.width / 5.0),
        (axes.yaxis, found.row_names, found.figure or "Context length (tokens)", style.size.height / 2.0),
    ):
        step = -(-len(names) // max(int(0.8 * inches * 72.0 / style.size.text), 2))
        places = np.arange(len(names))[::step]
        axis.set_ticks(places, labels=[names[place] for place in places])
        axis.set_label_text(words)
