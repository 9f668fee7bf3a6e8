"""Atomic writing of an output folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from llmviewer.core.errors import UserError, printable


def target_folder(path: str, replaceable: Callable[[Path], bool]) -> Path:
    """The folder at `path`, links resolved.  Raises UserError unless it is new or contains only `replaceable` files."""
    try:
        folder = Path(os.path.realpath(Path(path).expanduser()))
        if folder.exists() and not folder.is_dir():
            raise UserError(f"cannot write '{printable(path)}': it is a file, not a folder")
        others = sorted(e.name for e in folder.iterdir() if not replaceable(e)) if folder.exists() else []
        if others:
            raise UserError(
                f"cannot write '{printable(path)}': it contains other files ({printable(others[0])}); give a new folder"
            )
        parent = _existing_parent(folder)
        if not os.access(parent, os.W_OK | os.X_OK):
            raise UserError(f"cannot write '{printable(path)}': no permission in '{printable(str(parent))}'")
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, an unknown user (`~name`), a null character
        raise UserError(f"cannot write '{printable(path)}': {getattr(error, 'strerror', None) or error}") from error
    return folder


def _existing_parent(path: Path) -> Path:
    """The nearest parent folder that exists."""
    parent = path.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise UserError(f"cannot write '{printable(str(path))}': '{printable(str(parent))}' is a file")
    return parent


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path` that replaces it at the end and is removed on any error.

    path: result of `target_folder`.
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
