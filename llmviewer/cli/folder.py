"""A folder that is written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from llmviewer.core.errors import UserError, printable


def target_folder(path: str, ours: Callable[[Path], bool]) -> Path:
    """The folder meant by `path`, links followed; raise unless it is new, empty, or holds files of `ours` alone."""
    try:
        found = Path(os.path.realpath(Path(path).expanduser()))
        if found.exists() and not found.is_dir():
            raise UserError(f"cannot write '{printable(path)}': it is a file, and a folder is needed")
        others = sorted(entry.name for entry in found.iterdir() if not ours(entry)) if found.exists() else []
        if others:
            raise UserError(
                f"cannot write '{printable(path)}': it holds other files ({printable(others[0])}); name a new folder"
            )
        parent = _existing(found)
        if not os.access(parent, os.W_OK | os.X_OK):
            raise UserError(f"cannot write '{printable(path)}': no permission in '{printable(str(parent))}'")
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, `~nobody`, a null character
        raise UserError(f"cannot write '{printable(path)}': {getattr(error, 'strerror', None) or error}") from error
    return found


def _existing(path: Path) -> Path:
    """The nearest folder above that is there."""
    found = path.parent
    while not found.exists():
        found = found.parent
    if not found.is_dir():
        raise UserError(f"cannot write '{printable(str(path))}': '{printable(str(found))}' is a file")
    return found


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place at the end, and vanishes on any error.

    path: as of `target`.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:32]}."))
        new, old = temporary / "new", temporary / "old"
        new.mkdir()
        yield new
        if path.exists():
            path.rename(old)
        new.rename(path)
    except OSError as error:
        raise UserError(f"cannot write '{printable(str(path))}': {error.strerror or error}") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
