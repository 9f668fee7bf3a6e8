"""Where an answer goes: the terminal, or a file that is written whole or not at all."""

from __future__ import annotations

import codecs
import io
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from llmviewer.core import data
from llmviewer.core.errors import UserError, printable


def check_not_an_input(path: str, inputs: Iterable[str]) -> None:
    """Raise where a file to write is one of those to read: a model's config, a chip's YAML."""
    written = data.user_path(path)
    for name in inputs:
        read = data.user_path(name)
        for one in (read, read and data.user_path(str(read / "config.json"))):
            if written and one and one.samefile(written):
                raise UserError(f"cannot write '{printable(path)}': it is what the answer is about")


def print_warnings(texts: Iterable[str]) -> None:
    """Say on stderr what rows have no place for; each text once."""
    for text in dict.fromkeys(texts):
        print(f"warning: {text}", file=sys.stderr)  # noqa: T201


def write(text: str, path: str | None) -> None:
    """Print `text`, or put it into the file `path`."""
    with open_output(path) as stream:
        stream.write(text if text.endswith("\n") else text + "\n")


@contextmanager
def open_output(path: str | None) -> Iterator[IO[str]]:
    """A stream to write text to: stdout, or a file that appears only when all has been written."""
    if path is not None:
        with (
            atomic_file(path) as temporary,
            temporary.open("w", encoding="utf-8", errors="replace", newline="") as stream,
        ):
            yield stream
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="llmviewer.plain")
    try:
        yield sys.stdout
        sys.stdout.flush()
    except OSError as error:
        _discard_stdout()
        if isinstance(error, BrokenPipeError):
            raise
        raise UserError(f"cannot write to the terminal: {error.strerror or error}") from error


@contextmanager
def atomic_file(path: str) -> Iterator[Path]:
    """A temporary file beside `path` that takes its name at the end, and vanishes on any error.

    A link keeps pointing where it did; a device or a pipe is written to, never replaced.
    """
    temporary = None
    try:
        target = _target(path)
        if target.exists() and not target.is_file():
            yield target
            return
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:32]}.")
        temporary = Path(name)
        os.close(handle)
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    except OSError as error:
        raise UserError(f"cannot write '{printable(path)}': {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_writable(path: str) -> None:
    """Raise for a file that could not be written, before anything is computed that would be lost."""
    try:
        target = _target(path)
        if target.exists() and not target.is_file():
            return  # a device or a pipe
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:32]}.")
        os.close(handle)
        Path(name).unlink()
    except OSError as error:
        raise UserError(f"cannot write '{printable(path)}': {error.strerror or error}") from error


def _target(path: str) -> Path:
    """The file meant by `path`, links followed."""
    try:
        target = Path(os.path.realpath(Path(path).expanduser()))
    except (RuntimeError, ValueError) as error:  # `~nobody`, a loop of links, a null character
        raise UserError(f"cannot write '{printable(path)}': {error}") from error
    if target.is_dir():
        raise UserError(f"cannot write '{printable(path)}': it is a directory")
    return target


def _discard_stdout() -> None:
    """Let what is still buffered go nowhere: the interpreter flushes once more when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


#: What stands for a character that the terminal's encoding does not have.
ASCII_SUBSTITUTES = dict(zip("×µ–─█▓▒░·▲", "xu--#=+:.^", strict=True)) | dict.fromkeys("▏▎▍▌▋▊▉", "")  # noqa: RUF001


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(ASCII_SUBSTITUTES.get(c, "?") for c in error.object[error.start : error.end]), error.end


codecs.register_error("llmviewer.plain", _plain)


def _umask() -> int:
    """The mask a plain open() would have applied."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
