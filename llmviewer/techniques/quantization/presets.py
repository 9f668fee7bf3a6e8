"""Published quantization methods, read from presets.yaml when this module is first imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from llmviewer.core import data
from llmviewer.core.dtypes import DTYPES, Dtype
from llmviewer.core.frozen import frozen
from llmviewer.language import record
from llmviewer.language.record import stated
from llmviewer.techniques.quantization.quantize import QuantizationScheme

FILE = data.folder("techniques/quantization") / "presets.yaml"
SIXTEEN = DTYPES["fp16"]


@frozen
class PublishedScheme:
    """A published quantization method.

    names: accepted by --quantization.  scheme: its number formats, named by the first of `names`.  source: publication.
    note: how the bits are computed.
    """

    names: tuple[str, ...] = field(metadata=stated(record.listed(record.filled, least=1)))
    title: str = field(metadata=stated(key="method"))
    scheme: QuantizationScheme
    source: str
    note: str = ""


def _dtype(entry: Any) -> Dtype:
    """A number format of the YAML file."""
    if isinstance(entry, Mapping):
        found = _OWN_FORMAT(entry)
        return Dtype(name=found["as"], bits=found["bits"], compute=found["compute"])
    return SIXTEEN if entry == 16 else DTYPES[record.choice("number format", DTYPES)(entry)]


_OWN_FORMAT = record.keyed(bits=record.ABOVE_ZERO, compute=record.filled, **{"as": record.filled})
#: Keys of a preset that its scheme holds.
_OF_SCHEME = dict.fromkeys(("weights", "activations", "cache", "embedding", "head", "experts"), _dtype) | {
    "kept": record.listed(),
    "caveat": record.text,
}


def _published(row: Any) -> PublishedScheme:
    """A preset from its row in the file."""
    found, of_scheme = record.split(PublishedScheme, row, beside=_OF_SCHEME, given=("scheme",))
    return PublishedScheme(scheme=QuantizationScheme(name=found["names"][0], **of_scheme), **found)


#: The presets of the file.
ROWS = record.keyed(presets=record.listed(_published))
#: All published methods, in the order of the file.
PUBLISHED_SCHEMES: tuple[PublishedScheme, ...] = record.of_file(FILE.name, ROWS, data.read_yaml(FILE))["presets"]
#: Accepted name -> scheme; the scheme has the requested name, so that results show it.
PRESETS: dict[str, QuantizationScheme] = {
    name: replace(method.scheme, name=name) for method in PUBLISHED_SCHEMES for name in method.names
}
#: Names of the formats of GGUF files that are no plain 16 bit.
OF_GGUF = tuple(
    name for found in PUBLISHED_SCHEMES if found.names[0].startswith(("gguf-", "ud-")) for name in found.names
)
