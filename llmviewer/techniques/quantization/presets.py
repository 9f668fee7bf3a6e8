"""Published quantization methods, read from presets.yaml when this module is first imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmviewer.core import data
from llmviewer.core.dtypes import DTYPES, Dtype
from llmviewer.techniques.quantization.quantize import QuantizationScheme

FILE = data.folder("techniques/quantization") / "presets.yaml"
SIXTEEN = DTYPES["fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScheme:
    """A published quantization method.

    names: accepted by --quantization.  scheme: its number formats, named by the first of `names`.  source: publication.
    note: how the bits are computed.
    """

    names: tuple[str, ...]
    title: str
    scheme: QuantizationScheme
    source: str
    note: str = ""


def _read_schemes() -> Iterator[PublishedScheme]:
    keys = (
        "names",
        "method",
        "weights",
        "activations",
        "cache",
        "embedding",
        "head",
        "experts",
        "kept",
        "caveat",
        "source",
        "note",
    )
    for number, row in enumerate(data.read_yaml(FILE)["presets"], 1):
        data.check_keys(row, keys, ("names", "method", "source"), f"{FILE.name}: preset {number}")
        yield PublishedScheme(
            names=tuple(row["names"]),
            title=row["method"],
            scheme=QuantizationScheme(
                name=row["names"][0],
                weights=_dtype(row.get("weights")),
                activations=_dtype(row.get("activations")),
                **{part: _dtype(row.get(part)) for part in ("cache", "embedding", "head", "experts")},
                kept=tuple(row.get("kept", ())),
                caveat=row.get("caveat", ""),
            ),
            source=row["source"],
            note=row.get("note", ""),
        )


def _dtype(entry: str | int | Mapping[str, Any] | None) -> Dtype | None:
    """Parse a number format of the YAML file; None if the entry is missing."""
    if entry is None:
        return None
    if isinstance(entry, Mapping):
        return Dtype(name=entry["as"], bits=float(entry["bits"]), compute=entry["compute"])
    return SIXTEEN if entry == 16 else DTYPES[str(entry)]


#: All published methods, in the order of the file.
PUBLISHED_SCHEMES: tuple[PublishedScheme, ...] = tuple(_read_schemes())
#: Accepted name -> scheme; the scheme has the requested name, so that results show it.
PRESETS: dict[str, QuantizationScheme] = {
    name: replace(method.scheme, name=name) for method in PUBLISHED_SCHEMES for name in method.names
}
