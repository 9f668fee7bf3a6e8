"""Where an answer goes: the terminal, or a file that is written whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from llmviewer.errors import UserError, shown


def write(text: str, path: str) -> None:
    """Print `text`, or put it into the file `path`."""
    with opened(path) as stream:
        stream.write(text if text.endswith("\n") else text + "\n")


@contextmanager
def opened(path: str) -> Iterator[IO[str]]:
    """A stream to write text to: stdout, or a file that appears only when all has been written."""
    if not path:
        yield sys.stdout
        return
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        yield stream


@contextmanager
def replacing(path: str) -> Iterator[Path]:
    """A temporary file beside `path` that takes its name at the end, and vanishes on any error."""
    target = Path(path).expanduser()
    if target.is_dir():
        raise UserError(f"cannot write '{shown(path)}': it is a directory")
    temporary = None
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        temporary = Path(name)
        os.close(handle)
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    except OSError as error:
        raise UserError(f"cannot write '{shown(path)}': {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    """The mask a plain open() would have applied."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
