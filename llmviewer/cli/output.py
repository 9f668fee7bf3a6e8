"""Where an answer goes: the terminal, or a file that is written whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from llmviewer.errors import UserError, shown


def write(text: str, path: str) -> None:
    """Print `text`, or put it into the file `path` (a temporary file first, then renamed)."""
    if not path:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    target = Path(path).expanduser()
    if target.is_dir():
        raise UserError(f"cannot write '{shown(path)}': it is a directory")
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else text + "\n")
        Path(name).replace(target)
    except OSError as error:
        raise UserError(f"cannot write '{shown(path)}': {error.strerror or error}") from error
