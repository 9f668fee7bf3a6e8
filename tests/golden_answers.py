"""The answer of one command line: its exit status, its figures, each with its path and key, and its words."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TypeAlias

#: Objects of an answer that say where and when it was made.
LEFT_OUT = ("provenance",)
#: Files with figures to read; of others, such as pictures, the status counts.
READ = (".json", ".csv", ".md", ".html", ".yaml")
#: A number that stands alone in a text: not those of `h100-sxm` or `llama-3.2-1b`.
NUMBER = re.compile(r"(?<![\w.,:/@=*-])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w:/@-]|[.,]\d)")

#: Path of a figure, the key that names it, and the figure.
Figure: TypeAlias = tuple[str, str, str]


def figures(text: str, suffix: str = "") -> tuple[list[Figure], str]:
    """The figures of an answer (JSON, CSV, HTML or text), and its words."""
    if suffix in ("", "json") and text[:1] in ("{", "["):
        words: list[str] = []
        return list(_of_json(json.loads(text), "", "", words)), "\n".join(words)
    if suffix == "csv":
        return _of_csv(text)
    if suffix == "html":
        text = re.sub(r"(?s)<(script|style).*?</\1>|<[^>]*>", "  ", text)
    return _of_text(text), NUMBER.sub("#", text)


def _of_json(value: Any, path: str, name: str, words: list[str]) -> Iterator[Figure]:
    if isinstance(value, dict):
        for key, one in value.items():
            if key not in LEFT_OUT:
                yield from _of_json(one, f"{path}.{key}", key, words)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _of_json(one, f"{path}[{number}]", name, words)
    elif isinstance(value, str):
        words.append(value)
    else:
        yield path, name, repr(value)


def _of_csv(text: str) -> tuple[list[Figure], str]:
    found, words = [], []
    for number, row in enumerate(csv.DictReader(io.StringIO(text))):
        for name, cell in row.items():
            try:
                found.append((f"[{number}].{name}", str(name), repr(float(cell))))
            except (TypeError, ValueError):
                words.append(str(cell))
    return found, "\n".join(words)


def _of_text(text: str) -> list[Figure]:
    """Numbers as printed, by whether they stand in a row of a table or in a sentence."""
    found = []
    for number, line in enumerate(text.splitlines()):
        name = "(rows)" if len(re.findall(r"\S(?:  +|\s*\|)", line)) > 2 else "(sentences)"
        found += [(f"line {number}, {at}", name, one) for at, one in enumerate(NUMBER.findall(line))]
    return found


def answer(line: str) -> tuple[int, list[Figure], str]:
    """Exit status, figures and words of a line, run in the current folder."""
    from llmviewer.cli import main

    words, out, drawn = shlex.split(line), io.StringIO(), []
    if words[0] in ("plot", "report"):
        drawn = _recorded_pictures()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        try:
            status = main(words)
        except SystemExit as error:
            status = int(error.code or 0)
        except Exception:
            status = 70
    text, suffix = out.getvalue(), words[words.index("--format") + 1] if "--format" in words else ""
    target = Path(words[words.index("-o") + 1]) if "-o" in words else None
    if target and target.is_file():
        if target.suffix in READ:
            text, suffix = target.read_text(encoding="utf-8"), target.suffix.lstrip(".")
        target.unlink()
    found, said = figures(re.sub(rf"(?:[\w/~.-]*/)?{Path.cwd().name}", ".", text), suffix)
    return status, found + drawn, said


def _recorded_pictures() -> list[Figure]:
    """A list of places of what matplotlib draws from now on, in units of the axes' data; no picture is written."""
    from matplotlib.figure import Figure as Picture

    drawn: list[Figure] = []

    def savefig(picture: Any, *_: Any, **__: Any) -> None:
        for axes in picture.axes:
            lines = [line.get_xydata() for line in axes.lines]
            shapes = [one.get_path().transformed(one.get_patch_transform()).vertices for one in axes.patches]
            groups = [path.vertices for one in axes.collections for path in one.get_paths()]
            groups += [one.get_offsets() for one in axes.collections]
            for name, places in (("(lines)", lines), ("(patches)", shapes), ("(groups)", groups)):
                listed = sorted(repr(one.tolist()) for one in places)
                drawn.extend((f"{name}[{number}]", name, one) for number, one in enumerate(listed))

    Picture.savefig = savefig  # type: ignore[method-assign]
    return drawn


def enter(prepared: str) -> None:
    """Give this process a copy of the prepared folder to work in."""
    folder = tempfile.mkdtemp(prefix="worker-", dir=Path(prepared).parent)
    shutil.copytree(prepared, folder, symlinks=True, dirs_exist_ok=True)
    os.chdir(folder)
