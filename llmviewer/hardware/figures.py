"""Figures of a chip, each with its source, and the metadata that declares them as fields of `Chip`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmviewer.language import record
from llmviewer.language.record import ABSENT, Form, stated

#: A figure in the units of spec files; outside this range products may exceed that of float64.
IN_RANGE = record.number(1e-6, 1e15, expected="a positive number (1e-6 to 1e15)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a spec file in SI units, with its source."""

    value: float = field(metadata=ABSENT)
    source: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureInfo:
    """Declaration of a field of `Chip` that is a figure; every such field may be an array.

    label: its name in tables.  unit: SI unit; "1" for a plain number.  key: the key in a spec file, "" if the figure
    is derived.  per_dtype: the field maps dtypes to figures.
    """

    label: str
    unit: str
    key: str = ""
    per_dtype: bool = False


def figure(label: str, unit: str, key: str = "", factor: float = 1.0) -> Mapping[str, Any]:
    """Metadata for a field with one figure.  factor: one unit of the spec file in SI units."""
    in_file = stated(sourced(factor), key) if key else ABSENT
    return {"figure": FigureInfo(label=label, unit=unit, key=key), **in_file}


def figure_per_dtype(label: str, unit: str, key: str, factor: float, dtypes: Collection[str]) -> Mapping[str, Any]:
    """Metadata for a field with one figure per dtype."""
    in_file = stated(record.mapped(sourced(factor), dtypes), key)
    return {"figure": FigureInfo(label=label, unit=unit, key=key, per_dtype=True), **in_file}


def sourced(factor: float = 1.0) -> Form:
    """A figure with its source, in SI units; a user's own file may give a bare number.  factor: as of `figure`."""

    def form(entry: Any) -> Figure:
        if not isinstance(entry, Mapping):
            return Figure(value=IN_RANGE(entry) * factor, source="given by the user")
        found, beside = record.split(Figure, entry, beside={"value": record.anything}, required=("value",))
        return Figure(value=IN_RANGE(beside["value"]) * factor, **found)

    return form
