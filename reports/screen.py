"""Width and colour support of the terminal."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import IO

#: Width without a terminal: enough for all columns that explain a time.
WIDTH_WITHOUT_TERMINAL = 120
WIDTH_OF_FILES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Number of text columns, and whether colours are used."""

    width: int
    colour: bool

    @classmethod
    def from_stream(cls, stream: IO[str]) -> Screen:
        """Returns the screen of a stream; its width is COLUMNS, or that of a standard stream that is a terminal.

        Colours are used only on a terminal, and not if NO_COLOR is set (https://no-color.org) or TERM is dumb.
        """
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(width=_width(), colour=stream.isatty() and wanted)


#: Screen of a file, in which tables keep every column.
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
