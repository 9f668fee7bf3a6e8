"""What a terminal offers: how many columns, and whether colours are welcome."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import IO

#: Where there is no terminal to ask: wide enough for every column that explains a time.
WIDTH_WITHOUT_TERMINAL = 120
WIDTH_OF_FILES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """How many columns there are, and whether colours are welcome."""

    width: int
    colour: bool

    @classmethod
    def of(cls, stream: IO[str]) -> Screen:
        """The screen behind a stream: COLUMNS, else the size of whichever standard stream is a terminal.

        Colours only on a terminal, and not where NO_COLOR is set (https://no-color.org) or TERM is dumb.
        """
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(width=_width(), colour=stream.isatty() and wanted)


#: A file has no edge; tables keep every column.
FILE = Screen(width=WIDTH_OF_FILES, colour=False)


def _width() -> int:
    if os.environ.get("COLUMNS", "").isdigit():
        return max(shutil.get_terminal_size().columns, 20)
    for descriptor in (1, 2, 0):
        try:
            columns = os.get_terminal_size(descriptor).columns
        except (OSError, ValueError):
            continue
        if columns:
            return max(columns, 20)
    return WIDTH_WITHOUT_TERMINAL
