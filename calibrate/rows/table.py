"""A kind of measured table: its columns, and the operators of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Place
from llmviewer.hardware.chip import Chip

if TYPE_CHECKING:
    import pandas as pd

#: (rows of one formula, the first of them, chip) -> operators, each with one entry per row; the last one is the kernel
#: whose family and variant the rows are fitted as.
Build: TypeAlias = "Callable[[pd.DataFrame, Any, Chip], tuple[Operator, ...]]"


def _same_engine(engine: str, first: Any) -> str:
    return engine


def _family_of_operator(first: Any) -> str:
    return ""


def _no_contradictions(rows: pd.DataFrame) -> list[tuple[Any, str]]:
    return []


@frozen
class Table:
    """A kind of measured table.

    shape: columns of a shape; rows of one shape belong to one cross-validation fold, whatever their source.
    formula: columns that must be constant within a group, since they choose the formula.  needed: columns of text
    without which a row says nothing.  defaults: values of optional columns.  words: columns of `shape` with text.
    engine: (engine, first row) -> the engine with a suffix for a kernel other than its usual one.
    family: first row -> family of the fit, where the operator alone does not say; "" where it does.
    apart: rows -> mask of those that another kernel runs, which form groups of their own.
    contradictions: rows -> (mask, reason) of cells that are wrong only together.
    """

    shape: tuple[str, ...]
    formula: tuple[str, ...]
    needed: tuple[str, ...]
    build: Build
    defaults: Mapping[str, str | int] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    engine: Callable[[str, Any], str] = _same_engine
    family: Callable[[Any], str] = _family_of_operator
    apart: Callable[[pd.DataFrame], Any] | None = None
    contradictions: Callable[[pd.DataFrame], list[tuple[Any, str]]] = _no_contradictions

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns of the shape that hold numbers."""
        return tuple(name for name in self.shape if name not in self.words)

    @property
    def mandatory(self) -> set[str]:
        """Columns that identify the table."""
        return {*self.shape} - {*self.defaults}


def column(group: pd.DataFrame, name: str) -> Array:
    """A column as floats."""
    return group[name].to_numpy(dtype=np.float64)


def divided(access: Access, resident: Count) -> tuple[Access, Access]:
    """The part of an access that is in device memory, and the resident share of it, which is in the L2."""
    tensor = access.tensor
    return Access(tensor, access.elements * (1.0 - resident)), Access(tensor.at(Place.L2), access.elements * resident)
