"""A map of the best configuration, as letters with their legend: contexts are rows, batch sizes are columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

import numpy as np

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Column, Facts, Page, Row, Table, right
from llmviewer.result.crossover import CROSSOVER_METRICS, NO_WINNER, Crossover

#: Longer texts would make a column wider than its figures.
MAX_TEXT_LENGTH = 24


def letters(texts: Sequence[str]) -> Mapping[str, str]:
    """Returns text -> letter, in the order of the texts; empty if all are short or there are more than 26."""
    distinct = tuple(dict.fromkeys(texts))
    if max(map(len, distinct), default=0) <= MAX_TEXT_LENGTH or len(distinct) > len(ascii_uppercase):
        return {}
    return dict(zip(distinct, ascii_uppercase, strict=False))


def legend(titled: Mapping[str, Mapping[str, str]]) -> tuple[Facts, ...]:
    """Returns the legend of the letters of each title."""
    return tuple(
        Facts(title=title, lines=tuple((letter, text) for text, letter in found.items()))
        for title, found in titled.items()
        if found
    )


#: Context lengths and batch sizes that a terminal shows, evenly spaced; files contain all.
MAX_ROWS, MAX_COLUMNS = 24, 16
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


def page(found: Crossover) -> Page:
    """Returns a legend with each configuration's share of the points and its lead, and the map; ties in lower case."""
    winner, tied = found.winner.astype(int), found.tied
    letters = {index: ascii_uppercase[index] for index in range(len(found.names))} | {NO_WINNER: "·"}
    lines = [(letters[index], name, _share_and_lead(found, index)) for index, name in enumerate(found.names)]
    if (winner == NO_WINNER).any():
        lines.append((letters[NO_WINNER], "no configuration fits in memory", _share(winner == NO_WINNER)))
    down, across = _picked(len(found.row_names), MAX_ROWS), _picked(len(found.batch_sizes), MAX_COLUMNS)
    styles = {
        text: COLOURS[index % len(COLOURS)]
        for index in range(len(found.names))
        for text in (letters[index], letters[index].lower())
    }
    heads = (
        right(found.figure or "Context"),
        *(Column(title=fmt.whole(found.batch_sizes[j]), styles=styles) for j in across),
    )

    def shown(i: int, j: int) -> str:
        letter = letters[int(winner[i, j])]
        return letter.lower() if tied[i, j] else letter

    rows = tuple(Row(cells=(found.row_names[i], *(shown(i, j) for j in across))) for i in down)
    kind = "ideal: lower bounds" if found.efficiency == "ideal" else f"{found.efficiency}, {found.engine}"
    note = f"lowest {CROSSOVER_METRICS[found.metric].title} ({kind}); one column per batch size"
    if found.figure:
        note += f"; context {fmt.whole(found.contexts[0])}"
    if tied.any():
        note += f"; lower case: not separable, the 80 % interval of another overlaps ({_share(tied)})"
    return (Facts(lines=tuple(lines)), Table(columns=heads, rows=rows, note=note))


def _share(points: np.ndarray) -> str:
    return f"{fmt.share(float(np.mean(points)))} of the points"


def _share_and_lead(found: Crossover, index: int) -> str:
    """Returns the share of points that a configuration wins, and its median and largest lead over the second best."""
    won = found.winner == index
    leads = found.margin[won & np.isfinite(found.margin)] + 1.0
    lead = f", by {fmt.times(float(np.median(leads)))}, at most {fmt.times(float(leads.max()))}" if leads.size else ""
    return f"{_share(won)}{lead}"


def _picked(count: int, limit: int) -> list[int]:
    """Returns at most `limit` of `count` indices, evenly spaced, including the first and the last."""
    return sorted({round(x) for x in np.linspace(0, count - 1, min(count, limit))})
