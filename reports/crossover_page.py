"""A map of winners: contexts down, batch sizes across, a letter for each configuration."""

from __future__ import annotations

from string import ascii_uppercase

import numpy as np

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Column, Facts, Page, Row, Table, right
from llmviewer.result.crossover import NOBODY, Crossover

#: A terminal shows at most this many contexts and batch sizes, evenly picked; files hold all.
MOST_ROWS, MOST_COLUMNS = 24, 16
#: metric -> what is least, in words; of speculation a decode step's share of a token.
METRIC_TITLES = {
    "decode_time_s": "decode time a token",
    "device_time_s": "decode time a token × devices",
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "e2e_s": "E2E",
}
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


def page(found: Crossover) -> Page:
    """Legend with each one's share of the points, and the map."""
    winner = found.winner.astype(int)
    letters = {index: ascii_uppercase[index] for index in range(len(found.names))} | {NOBODY: "·"}
    lines = [
        (letters[index], name, f"{fmt.share(float(np.mean(winner == index)))} of the points")
        for index, name in enumerate(found.names)
    ]
    if (winner == NOBODY).any():
        lines.append((letters[NOBODY], "none fits in memory", f"{fmt.share(float(np.mean(winner == NOBODY)))}"))
    down, across = _picked(len(found.contexts), MOST_ROWS), _picked(len(found.batch_sizes), MOST_COLUMNS)
    styles = {letters[index]: COLOURS[index % len(COLOURS)] for index in range(len(found.names))}
    heads = (right("Context"), *(Column(title=fmt.whole(found.batch_sizes[j]), styles=styles) for j in across))
    rows = tuple(Row(cells=(fmt.whole(found.contexts[i]), *(letters[int(winner[i, j])] for j in across))) for i in down)
    note = f"least {METRIC_TITLES[found.metric]} ({found.efficiency}); batch sizes across"
    return (Facts(lines=tuple(lines)), Table(columns=heads, rows=rows, note=note))


def _picked(count: int, most: int) -> list[int]:
    """At most `most` of `count` places, the first and the last among them."""
    return sorted({round(x) for x in np.linspace(0, count - 1, min(count, most))})
