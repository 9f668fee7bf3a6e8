"""Output formats of a result (table, JSON, CSV, Markdown), to the terminal or to a file that is written atomically."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from llmviewer.core import data, files
from llmviewer.core.errors import MAX_LINE_CHARACTERS, UserError, printable, unknown
from llmviewer.core.frozen import frozen

if TYPE_CHECKING:
    from llmviewer.questions import Question
    from llmviewer.reports.page import Page


@frozen
class Views:
    """Functions that produce the content of each output format, called only for the requested format.

    page: for terminal and Markdown.  document: for JSON.  rows: for CSV, all with the same keys.
    """

    page: Callable[[], Page]
    document: Callable[[], object]
    rows: Callable[[], Sequence[Mapping[str, Any]]]


def of(question: Question, found: Any) -> Views:
    """The views of the answer to a question."""
    return Views(page=lambda: question.page_of(found), document=found.to_dict, rows=found.rows)


#: Suffix of an output file -> its format, which not every command has; pictures are drawn by `plot`.
SUFFIXES = {
    ".html": "html", ".htm": "html", ".md": "markdown", ".csv": "csv", ".json": "json", ".xlsx": "xlsx",
    ".parquet": "parquet", ".pdf": "pdf", ".png": "png", ".svg": "svg",
}  # fmt: skip


def check_output(name: str, path: str | None = None, inputs: Iterable[str] = (), *, known: Iterable[str] = ()) -> str:
    """The format of the output: by name, else by the suffix of the file, else a table.

    Raises UserError, before any work is done, for an unknown format, an unwritable file, or a path that is an input.
    inputs: names or paths of models and chips."""
    formats = tuple(known) or tuple(FORMATS)
    name = name or SUFFIXES.get(Path(path or "").suffix.lower(), "table")
    if name not in formats:
        raise unknown("format", name, formats)
    if path is not None:
        check_not_an_input(path, inputs)
        check_writable(path)
    return name


def show(views: Views, name: str, path: str | None) -> None:
    """Print the result in the format called `name`, or write it to the file `path`."""
    write(FORMATS[name](views, path), path)


def _table(views: Views, path: str | None) -> str:
    from llmviewer.reports import terminal

    return terminal.text(views.page(), terminal.FILE if path is not None else terminal.Screen.from_stream(sys.stdout))


def _markdown(views: Views, path: str | None) -> str:
    from llmviewer.reports import markdown

    return markdown.text(views.page())


def _json(views: Views, path: str | None) -> str:
    import json

    return json.dumps(views.document(), indent=1)


def _csv(views: Views, path: str | None) -> str:
    from llmviewer.reports.tables import csv_text

    return csv_text(views.rows())


FORMATS: dict[str, Callable[[Views, str | None], str]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
    "markdown": _markdown,
}


#: Files that are read from a folder given as an input.
INPUTS_IN_FOLDERS = ("config.json", "samples.jsonl")


def check_not_an_input(path: str, inputs: Iterable[str]) -> None:
    """Raise UserError, before anything is read, if the output file is one of the inputs.

    `atomic_file` refuses every other file that was read meanwhile.
    """
    output = data.user_path(path)
    for name in inputs:
        source = data.user_path(name)
        for file in (source, *(source and data.user_path(str(source / part)) for part in INPUTS_IN_FOLDERS)):
            if output and file and file.samefile(output):
                raise _overwriting(path)


def _overwriting(path: str) -> UserError:
    return UserError(f"refusing to overwrite the input file '{printable(path)}'; write to another one")


def print_warnings(texts: Iterable[str]) -> None:
    """Print warnings on stderr, each text once."""
    for text in dict.fromkeys(texts):
        print(f"warning: {printable(text, MAX_LINE_CHARACTERS)}", file=sys.stderr)  # noqa: T201


def write(text: str, path: str | None) -> None:
    """Print `text`, or write it to the file `path`."""
    with open_output(path) as stream:
        stream.write(text if text.endswith("\n") else text + "\n")


@contextmanager
def open_output(path: str | None) -> Iterator[IO[str]]:
    """Yield a text stream: stdout, or a file that appears only after everything has been written."""
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
        discard_stdout()
        if isinstance(error, BrokenPipeError):
            raise
        raise UserError(f"cannot write to the terminal: {error.strerror or error}") from error


@contextmanager
def atomic_file(path: str) -> Iterator[Path]:
    """Yield a temporary file next to `path` that replaces it at the end and is removed on any error; say so on stderr.

    Symbolic links are followed; a device or a pipe is written to, never replaced.  Raises UserError for a file
    that this command has read, before and after its content is made.
    """
    with _beside(path, unread=True) as (target, temporary):
        yield temporary or target
        if temporary:
            _check_unread(target, path)
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(target)
            print(f"wrote {printable(path, MAX_LINE_CHARACTERS)}", file=sys.stderr)  # noqa: T201


def check_writable(path: str) -> None:
    """Raise UserError for a file that cannot be written, before any result is computed."""
    with _beside(path):
        pass


@contextmanager
def _beside(path: str, *, unread: bool = False) -> Iterator[tuple[Path, Path | None]]:
    """The file at `path`, and an empty one next to it that is removed in the end; None next to a device or a pipe.

    unread: refuse a file that this command has read.  Raises UserError for what fails, also meanwhile.
    """
    temporary = None
    try:
        target = _target(path)
        if target.exists() and not target.is_file():
            yield target, None
            return
        if unread:
            _check_unread(target, path)
        temporary = _temporary(target)
        temporary.touch(mode=0o600, exist_ok=False)
        yield target, temporary
    except OSError as error:
        raise UserError(f"cannot write '{printable(path)}': {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):  # it was never made, or has replaced the file
                temporary.unlink()


def _check_unread(target: Path, path: str) -> None:
    if files.is_input(target):
        raise _overwriting(path)


def _temporary(target: Path) -> Path:
    """Unused name next to a file; known before the file is made, so that a signal in between leaves nothing behind."""
    return target.parent / f".{target.name[:32]}.{os.urandom(8).hex()}"


def _target(path: str) -> Path:
    """The file at `path`, links resolved."""
    try:
        target = Path(os.path.realpath(Path(path).expanduser()))
    except (RuntimeError, ValueError) as error:  # an unknown user (`~name`), a loop of links, a null character
        raise UserError(f"cannot write '{printable(path)}': {error}") from error
    if target.is_dir():
        raise UserError(f"cannot write '{printable(path)}': it is a directory")
    return target


def discard_stdout() -> None:
    """Redirect stdout to the null device, because the interpreter flushes it once more on exit."""
    with suppress(OSError):  # a stream without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


#: Substitutes for characters that the terminal's encoding lacks.
ASCII_SUBSTITUTES = dict(zip("×µ–─█▓▒░·▲", "xu--#=+:.^", strict=True)) | dict.fromkeys("▏▎▍▌▋▊▉", "")  # noqa: RUF001


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(ASCII_SUBSTITUTES.get(c, "?") for c in error.object[error.start : error.end]), error.end


codecs.register_error("llmviewer.plain", _plain)


def _umask() -> int:
    """The process's file mode creation mask."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
