"""Output formats of a result: a table for the terminal, JSON, CSV, Markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.cli.output import check_not_an_input, check_writable, write
from llmviewer.core.errors import unknown

if TYPE_CHECKING:
    from llmviewer.questions import Question
    from llmviewer.reports.page import Page


@dataclass(frozen=True, slots=True, kw_only=True)
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
    from llmviewer.reports import screen, terminal

    return terminal.text(views.page(), screen.FILE if path is not None else screen.Screen.from_stream(sys.stdout))


def _markdown(views: Views, path: str | None) -> str:
    from llmviewer.reports import markdown

    return markdown.text(views.page())


def _json(views: Views, path: str | None) -> str:
    import json

    return json.dumps(views.document(), indent=1)


def _csv(views: Views, path: str | None) -> str:
    from llmviewer.reports.cells import csv_text

    return csv_text(views.rows())


FORMATS: dict[str, Callable[[Views, str | None], str]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
    "markdown": _markdown,
}
