"""Names that running code gives to values: its variables, fields of its records, and constants of its file."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

#: Code whose variables give names, and that which it may call meanwhile.
NAMING, PACKAGE = "/llmviewer/timing/", "/llmviewer/"
#: Names of constants.
CONSTANT = re.compile(r"\b_?[A-Z][A-Z0-9_]*\b")


def nearest_frame() -> FrameType | None:
    """The nearest running function whose variables give names; None outside of the package."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and NAMING not in _path(frame):
        frame = frame.f_back if PACKAGE in _path(frame) else None
    return frame


def place(frame: FrameType) -> str:
    """First sentence of what a function says, with its file and name."""
    text = getattr(frame.f_globals.get(frame.f_code.co_name), "__doc__", None) or ""
    text = text.partition("\n")[0].partition(". ")[0].rstrip(".:")
    return f"{text} ({file(frame)})" if text else file(frame)


def said_of(name: str, frame: FrameType) -> str:
    """The comment of a constant, else the first sentence of the function that uses it, with file and function."""
    comment = _comments(frame.f_code.co_filename).get(name, "")
    return f"{comment} ({file(frame)})" if comment else f"constant of: {place(frame)}"


@cache
def _comments(path: str) -> dict[str, str]:
    """Comments `#:` of a file by the constants in the line after them."""
    found: dict[str, str] = {}
    said: list[str] = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if line.startswith("#:"):
            said.append(line[2:].strip())
            continue
        if said:
            text = " ".join(said).rstrip(".")
            found.update(dict.fromkeys(CONSTANT.findall(line.partition("=")[0]), text))
        said = []
    return found


def file(frame: FrameType) -> str:
    """File and name of a function."""
    return f"{_path(frame).rpartition(PACKAGE)[2]}: {frame.f_code.co_name}"


def name_of(value: Any, frame: FrameType) -> str:
    """The name of the variable, field or constant that holds a value; "" if none does."""
    variables = frame.f_locals
    for name, held in variables.items():
        if held is value:
            return name
    for held in variables.values():
        kind: Any = type(held)
        for name in field_names(kind):
            if getattr(held, name) is value:
                return name
    known = frame.f_globals
    return next((name for name in frame.f_code.co_names if known.get(name) is value), "")


def _path(frame: FrameType) -> str:
    return _slashed(frame.f_code.co_filename)


@cache
def _slashed(path: str) -> str:
    return path.replace(os.sep, "/")


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a record's type; none for another type."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
