"""Command-line options of techniques."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto


class SharedBy(IntEnum):
    """Draft models that a technique applies to in addition to the target, from most to none.

    ENGINE: all draft models, because they run in the same engine.  WEIGHTS: draft models that use weights of the
    target: it changes how these are stored or which of them run.  LAYERS: draft models that run all layers of the
    target, because the technique depends on their number.  TARGET: none.
    """

    ENGINE = auto()
    WEIGHTS = auto()
    LAYERS = auto()
    TARGET = auto()


@dataclass(frozen=True, slots=True)
class Option:
    """Command-line option of a technique.

    entry: module within `llmviewer.techniques`, or `module:NAME`, of its Technique; NAME is TECHNIQUE by default.
    help: one line.  off: the value that disables it.  default: its value if not given.  flags: further spellings.
    separator: between several values of a sweep; `;` where one value may contain commas.
    """

    entry: str
    shared_by: SharedBy
    help: str
    off: str = "none"
    default: str = "none"
    flags: tuple[str, ...] = ()
    separator: str = ","
