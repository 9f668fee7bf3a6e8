"""Which chip rows were measured on: words of the column `device` -> chips that we describe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from llmviewer.core import data
from llmviewer.core.errors import UserError, shown
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip


@lru_cache(maxsize=256)
def known(word: str) -> str:
    """Our name of the chip that a table calls `word`; empty where we describe none."""
    folded = word.replace("_", "-")
    if folded.endswith((".yaml", ".yml")) or folded.startswith((".", "/", "~")):
        return ""
    try:
        return data.find("hardware_specs", folded, "chip")[1]
    except UserError:
        return ""


def are(words: Any, chip: Chip) -> Any:
    """Mask of the rows that a column `device` says to be of a chip."""
    return np.array([known(str(word)) == chip.name for word in words], dtype=bool)


def counted(frames: Any) -> dict[str, int]:
    """Words of the column `device` -> rows."""
    found: dict[str, int] = {}
    for frame in frames:
        for word, rows in frame["device"].astype(str).value_counts().items():
            found[word] = found.get(word, 0) + int(rows)
    return found


def chosen(words: Mapping[str, int], wanted: str) -> tuple[Chip | None, tuple[str, ...]]:
    """The chip to fit and the words that mean it.  None: one device that nobody describes.

    words: devices of the samples, with rows.  wanted: a chip by name or path; empty: the one device there is.
    """
    if not words:
        raise UserError("no measured rows: the samples hold skipped shapes alone")
    if not wanted:
        names = {known(word) or word for word in words}
        if len(names) > 1:
            raise UserError(f"samples of several devices: {_listed(words)}; choose one with --hardware")
        name = known(next(iter(words)))
        return (specs.load(name) if name else None), tuple(words)
    chip = specs.load(wanted)
    meant = tuple(word for word in words if known(word) == chip.name or word == chip.name)
    if meant:
        return chip, meant
    only = next(iter(words))
    if len(words) == 1 and (not known(only) or data.own(wanted)):
        return chip, (only,)  # a device that only its owner describes
    raise UserError(f"no rows of {chip.name}; the samples are of {_listed(words)}")


def _listed(words: Mapping[str, int]) -> str:
    return ", ".join(f"{shown(word)} ({rows:,} rows)" for word, rows in words.items())
