"""Figures of a chip, each with its source, and the metadata that declares them as fields of `Chip`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a spec file in SI units, with its source."""

    value: float
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureInfo:
    """Declaration of a field of `Chip` that is a figure; every such field may be an array.

    label: its name in tables.  unit: SI unit; "1" for a plain number.  key: the key in a spec file, "" if the figure
    is derived.  factor: one unit of the spec file in SI units.  per_dtype: the field maps dtypes to figures.
    """

    label: str
    unit: str
    key: str = ""
    factor: float = 1.0
    per_dtype: bool = False


def figure(label: str, unit: str, key: str = "", factor: float = 1.0) -> Mapping[str, FigureInfo]:
    """Metadata for a field with one figure."""
    return {"figure": FigureInfo(label=label, unit=unit, key=key, factor=factor)}


def figure_per_dtype(label: str, unit: str, key: str, factor: float) -> Mapping[str, FigureInfo]:
    """Metadata for a field with one figure per dtype."""
    return {"figure": FigureInfo(label=label, unit=unit, key=key, factor=factor, per_dtype=True)}
