"""Names of published quantization methods, from quantization_presets.yaml; read when such a name is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmviewer.core import data
from llmviewer.core.dtypes import DTYPES, Dtype
from llmviewer.techniques.quantization.quantize import QuantizationScheme

FILE = data.folder("techniques/quantization") / "presets.yaml"
SIXTEEN = DTYPES["fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A published method: its names in --quantization, what it stores, where it is published.

    scheme: under the first of its names.
    """

    names: tuple[str, ...]
    title: str
    scheme: QuantizationScheme
    source: str
    note: str = ""


def _methods() -> Iterator[Method]:
    keys = ("names", "method", "weights", "activations", "cache", "source", "note")
    for at, row in enumerate(data.read_yaml(FILE)["presets"], 1):
        data.check_keys(row, keys, ("names", "method", "source"), f"{FILE.name}: preset {at}")
        yield Method(
            names=tuple(row["names"]),
            title=row["method"],
            scheme=QuantizationScheme(
                name=row["names"][0],
                weights=_dtype(row.get("weights")),
                activations=_dtype(row.get("activations")),
                cache=_dtype(row.get("cache")),
            ),
            source=row["source"],
            note=row.get("note", ""),
        )


def _dtype(entry: str | int | Mapping[str, Any] | None) -> Dtype | None:
    """A format as the file writes it."""
    if entry is None:
        return None
    if isinstance(entry, Mapping):
        return Dtype(name=entry["as"], bits=float(entry["bits"]), compute=entry["compute"])
    return SIXTEEN if entry == 16 else DTYPES[str(entry)]


#: A row per method.
METHODS: tuple[Method, ...] = tuple(_methods())
#: Every name -> its scheme, which results list under the name that was asked for.
PRESETS: dict[str, QuantizationScheme] = {
    name: QuantizationScheme(
        name=name, weights=method.scheme.weights, activations=method.scheme.activations, cache=method.scheme.cache
    )
    for method in METHODS
    for name in method.names
}
