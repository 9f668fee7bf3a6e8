"""Contents of a report independent of its format: tables, facts and bars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum
from typing import TypeAlias, TypeVar

from llmviewer.core.frozen import frozen

T = TypeVar("T")


class Align(Enum):
    """Alignment of a column: text is left-aligned, numbers right-aligned."""

    LEFT = "left"
    RIGHT = "right"


class Emphasis(Enum):
    """Emphasis of a row or a line of text."""

    PLAIN = "plain"
    GROUP = "group"  # the heading of a group of rows, with their sums
    WARNING = "warning"
    FAINT = "faint"


@frozen
class Column:
    """One column of a table.

    rank: 0 is always shown; on a narrow screen columns of the highest rank are dropped first.
    styles: cell text -> terminal style.  visual: a bar that text formats omit.  wraps: words that may take several
    lines on a narrow screen.
    """

    title: str
    align: Align = Align.RIGHT
    rank: int = 0
    styles: Mapping[str, str] = field(default_factory=dict)
    visual: bool = False
    wraps: bool = False


@frozen
class Row:
    """Cells of a row, one per column.  closes: the last row of a section, followed by a blank line."""

    cells: tuple[str, ...]
    emphasis: Emphasis = Emphasis.PLAIN
    closes: bool = False


@frozen
class Table:
    """Rows under a heading, with an optional total row below a line.

    keep: leading columns repeated in each part of a table that is split, because those of rank 0 are wider than the
    screen.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    title: str = ""
    note: str = ""
    total: tuple[str, ...] = ()
    keep: int = 1

    def without(self, title: str) -> Table:
        """Returns the table without the column of this title."""
        at = [column.title for column in self.columns].index(title)

        def others(cells: tuple[T, ...]) -> tuple[T, ...]:
            return cells[:at] + cells[at + 1 :]

        rows = tuple(replace(row, cells=others(row.cells)) for row in self.rows)
        return replace(self, columns=others(self.columns), rows=rows, total=others(self.total))


@frozen
class Facts:
    """Lines of two or more cells: a label first, last a sentence that wraps."""

    lines: tuple[tuple[str, ...], ...]
    title: str = ""
    emphasis: Emphasis = Emphasis.PLAIN


@frozen
class Segment:
    """One part of a bar."""

    label: str
    value: float
    glyph: str
    style: str


@frozen
class Bar:
    """A stacked bar of length `scale` with a mark at `mark`; text formats show only its title."""

    segments: tuple[Segment, ...]
    scale: float
    mark: float
    mark_label: str
    title: str = ""


Part: TypeAlias = "Table | Facts | Bar"
Page: TypeAlias = tuple[Part, ...]


def left(title: str, rank: int = 0, *, wraps: bool = False) -> Column:
    """Returns a left-aligned column."""
    return Column(title=title, align=Align.LEFT, rank=rank, wraps=wraps)


def right(title: str, rank: int = 0) -> Column:
    """Returns a right-aligned column."""
    return Column(title=title, rank=rank)


def plain(text: str) -> str:
    """Returns text without control characters, which a config or a path could contain."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
