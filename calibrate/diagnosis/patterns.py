"""Kinds of kernels by their names, from the table kernels.yaml."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from llmviewer.core import data
from llmviewer.core.errors import UserError, quoted
from llmviewer.language import record

TABLE = Path(__file__).with_name("kernels.yaml")
#: Kind of a kernel whose name no pattern knows.
UNKNOWN = ""
EVIDENCE = ("trace", "source", "table", "unverified")


def _pattern(value: Any) -> str:
    """A regular expression; one that begins with (?i) makes all of its row ignore upper and lower case."""
    try:
        re.compile(text := record.filled(value))
    except re.error as error:
        raise UserError(f"{quoted(value)} is no regular expression: {error}") from error
    return text


_ROW = record.keyed(
    kind=record.filled,
    engines=record.filled,
    evidence=record.choice("evidence", EVIDENCE),
    names=record.listed(_pattern, least=1),
)
#: The rows of the table.
ROWS = record.keyed(kernels=record.listed(_ROW))


@cache
def patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Kind and pattern of every row of the table, in order.  Raises UserError for a row that cannot be read."""
    found = []
    for row in record.of_file(TABLE.name, ROWS, data.read_yaml(TABLE))["kernels"]:
        flags = re.IGNORECASE if any(name.startswith("(?i)") for name in row["names"]) else 0
        found.append((row["kind"], re.compile("|".join(name.removeprefix("(?i)") for name in row["names"]), flags)))
    return tuple(found)


@lru_cache(maxsize=65536)
def kind_of(name: str) -> str:
    """Kind of a kernel; UNKNOWN if no pattern is found in its name."""
    return next((kind for kind, pattern in patterns() if pattern.search(name)), UNKNOWN)
