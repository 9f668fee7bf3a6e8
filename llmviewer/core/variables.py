"""Names that running code gives to values: its variables, fields of its records, and constants of its file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any

#: Code whose variables give names, and that which it may call meanwhile.
NAMING, PACKAGE = "/llmviewer/timing/", "/llmviewer/"


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


def file(frame: FrameType) -> str:
    """File and name of a function."""
    return f"{_path(frame).rpartition(PACKAGE)[2]}: {frame.f_code.co_name}"


def name_of(value: Any, frame: FrameType) -> str:
    """The name of the variable, field or constant that holds a value; "" if none does."""
    return next((name for name, held in _held(frame) if held is value), "")


def _path(frame: FrameType) -> str:
    return frame.f_code.co_filename.replace(os.sep, "/")


def _held(frame: FrameType) -> Iterator[tuple[str, Any]]:
    variables = dict(frame.f_locals)
    yield from variables.items()
    for value in variables.values():
        if is_dataclass(value) and not isinstance(value, type):
            for field in fields(value):
                yield field.name, getattr(value, field.name)
    for name in frame.f_code.co_names:
        yield name, frame.f_globals.get(name)
