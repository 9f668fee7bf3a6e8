"""Kinds of kernels by their names, from the table kernels.yaml."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path

from llmviewer.core import data
from llmviewer.core.errors import UserError

TABLE = Path(__file__).with_name("kernels.yaml")
#: Kind of a kernel whose name no pattern knows.
UNKNOWN = ""
EVIDENCE = ("trace", "source", "table", "unverified")


@cache
def patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Kind and pattern of every row of the table, in order.  Raises UserError for a row that cannot be read."""
    rows = data.read_yaml(TABLE)
    found = []
    for row in rows["kernels"]:
        try:
            flags = re.IGNORECASE if any(name.startswith("(?i)") for name in row["names"]) else 0
            names = (name.removeprefix("(?i)") for name in row["names"])
            found.append((str(row["kind"]), re.compile("|".join(names), flags)))
        except (re.error, KeyError) as error:
            raise UserError(f"{TABLE.name}: {row}: {error}") from error
    return tuple(found)


@lru_cache(maxsize=65536)
def kind_of(name: str) -> str:
    """Kind of a kernel; UNKNOWN if no pattern is found in its name."""
    return next((kind for kind, pattern in patterns() if pattern.search(name)), UNKNOWN)
