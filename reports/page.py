"""What a report says, apart from how it is shown: tables, facts and bars.  Renderers: terminal, markdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias, TypeVar

T = TypeVar("T")


class Align(Enum):
    """Words stand left, numbers right."""

    LEFT = "left"
    RIGHT = "right"


class Emphasis(Enum):
    """How much a row or a line of text stands out."""

    PLAIN = "plain"
    GROUP = "group"  # opens a group of rows and sums it up
    WARNING = "warning"
    FAINT = "faint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table.

    rank: 0 is always shown; where the screen is narrow the columns of the highest rank go first.
    styles: cell text -> style of the terminal.  visual: a picture that a text format leaves out.
    """

    title: str
    align: Align = Align.RIGHT
    rank: int = 0
    styles: Mapping[str, str] = field(default_factory=dict)
    visual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Cells, one per column.  closes: the last row of a section, a blank line follows."""

    cells: tuple[str, ...]
    emphasis: Emphasis = Emphasis.PLAIN
    closes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under a heading; `total` stands below a line.

    keep: leading columns that are repeated where a table may be split into several side by side (0: never split;
    columns are dropped by rank instead).
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    title: str = ""
    note: str = ""
    total: tuple[str, ...] = ()
    keep: int = 0

    def without(self, title: str) -> Table:
        """The table less one column."""
        at = [column.title for column in self.columns].index(title)

        def others(cells: tuple[T, ...]) -> tuple[T, ...]:
            return cells[:at] + cells[at + 1 :]

        rows = tuple(replace(row, cells=others(row.cells)) for row in self.rows)
        return replace(self, columns=others(self.columns), rows=rows, total=others(self.total))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Lines of two or more cells, label first; the last cell is a sentence and wraps."""

    lines: tuple[tuple[str, ...], ...]
    title: str = ""
    emphasis: Emphasis = Emphasis.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of a bar."""

    label: str
    value: float
    glyph: str
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Parts of a whole of length `scale`, with a mark at `mark`; a format without pictures shows the title alone."""

    segments: tuple[Segment, ...]
    scale: float
    mark: float
    mark_label: str
    title: str = ""


Part: TypeAlias = "Table | Facts | Bar"
Page: TypeAlias = tuple[Part, ...]


def left(title: str, rank: int = 0) -> Column:
    """A column of words."""
    return Column(title=title, align=Align.LEFT, rank=rank)


def right(title: str, rank: int = 0) -> Column:
    """A column of numbers."""
    return Column(title=title, rank=rank)


def plain(text: str) -> str:
    """One line that neither moves the cursor nor colours anything, whatever a config or a path is called."""
    return "".join(c if c.isprintable() else "?" for c in text)
