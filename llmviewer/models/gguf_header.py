"""The header of a GGUF file, read with the package `gguf`; the data of tensors are never read.

The package's own reader stores every token of the vocabulary (20 seconds for 128,000) and trusts every length; here
long lists are skipped and all lengths are bounded.  Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.core.errors import UserError, printable
from llmviewer.core.files import record
from llmviewer.core.frozen import frozen

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFValueType
    from gguf.gguf_reader import ReaderField
else:
    GGUFReader = object  # the package is imported only to read a file

#: Limits of a header; one of 300,000 tokens has 10 MB.
MAX_HEADER_BYTES, MAX_FIELDS, MAX_TENSORS = 2**27, 2000, 2**16
_PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf", re.DOTALL)
#: Longer lists are those of the tokenizer; lists with one entry per layer are shorter.
MAX_LISTED = 512


@frozen
class StoredTensor:
    """One tensor of the file.  shape: innermost dimension first.  format: `Q4_K`, `F32` ...; bits: per element."""

    shape: tuple[int, ...]
    format: str
    bits: float

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)


@frozen
class Header:
    """Fields and tensors of a GGUF file.  Lists of the tokenizer are left out."""

    fields: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def read(path: Path) -> Header:
    """The header of the GGUF file at `path`.  Raises UserError."""
    record(path)
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise UserError("reading a GGUF file needs the package gguf: pip install gguf") from error
    try:
        reader = type("Reader", (_Bounded, GGUFReader), {})(path)
        fields = {name: field.contents() for name, field in reader.fields.items() if field.data}
        return Header(fields=fields, tensors=dict(map(_tensor, reader.infos)))
    except OSError as error:
        raise UserError(f"cannot read '{printable(path)}': {error.strerror or error}") from error
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"'{printable(path)}' cannot be read as GGUF: {printable(error, 160)}") from error


def read_parts(path: Path) -> Header:
    """The header of a GGUF file together with the tensors of its other parts, if it was split.

    Raises UserError if a part is missing.
    """
    header = read(path)
    count = header.fields.get("split.count", 1)
    name = _PART.fullmatch(path.name)
    if not isinstance(count, int) or count < 2:
        return header
    if name is None or int(name[2]) != count:
        raise UserError(f"'{printable(path)}' is a part of {count}; expected the name NAME-00001-of-{count:05}.gguf")
    parts = [read(path.with_name(f"{name[1]}-{part:05}-of-{name[2]}.gguf")) for part in range(1, count + 1)]
    tensors = {tensor: stored for part in parts for tensor, stored in part.tensors.items()}
    return Header(fields=parts[0].fields, tensors=tensors)


def _tensor(info: ReaderField) -> tuple[str, StoredTensor]:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    kind = GGMLQuantizationType(int(info.parts[4][0]))
    block, size = GGML_QUANT_SIZES[kind]
    shape = tuple(map(int, info.parts[3]))
    if not shape or shape[0] % block or math.prod(shape) > 2**48:
        raise ValueError(f"tensor {info.name} has the shape {list(shape)} in blocks of {block}")
    return info.name, StoredTensor(shape=shape, format=kind.name, bits=size * 8.0 / block)


class _Bounded(GGUFReader):
    """Methods that replace those of the package's reader: lengths are bounded, long lists and data left out."""

    infos: list[ReaderField]

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        values = super()._get(offset, dtype, count, override_order)
        if offset > MAX_HEADER_BYTES or len(values) < count:
            raise ValueError("its header is cut short or too long")
        return values

    def _build_fields(self, offs: int, count: int) -> int:
        if count > MAX_FIELDS:
            raise ValueError(f"{count} fields; allowed: at most {MAX_FIELDS}")
        return super()._build_fields(offs, int(count))

    def _build_tensor_info(self, offs: int, count: int) -> tuple[int, list[ReaderField]]:
        if count > MAX_TENSORS:
            raise ValueError(f"{count} tensors; allowed: at most {MAX_TENSORS}")
        return super()._build_tensor_info(offs, int(count))

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        if len({field.name for field in fields}) < len(fields):
            raise ValueError("two tensors have one name")
        self.infos = fields

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        from gguf import GGUFValueType

        if GGUFValueType(int(raw_type)) is not GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        if kind is GGUFValueType.ARRAY:
            raise ValueError("lists of lists are not supported")
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        if count <= MAX_LISTED:
            return super()._get_field_parts(orig_offs, raw_type)
        size = self._strings(orig_offs + 12, count) if kind is GGUFValueType.STRING else self._size(kind) * count
        if size > MAX_HEADER_BYTES:
            raise ValueError("its header is too long")
        return 12 + size, [], [], []

    def _size(self, kind: GGUFValueType) -> int:
        return int(np.dtype(self.gguf_scalar_to_np[kind]).itemsize)

    def _strings(self, start: int, count: int) -> int:
        """Bytes of `count` strings, each with its length before it."""
        little = (sys.byteorder == "little") == (self.byte_order == "I")
        length = struct.Struct("<Q" if little else ">Q").unpack_from
        view, end = memoryview(self.data), start  # type: ignore[arg-type]
        for _ in range(count):
            if end > min(MAX_HEADER_BYTES, len(view) - 8):
                raise ValueError("its header is cut short or too long")
            end += 8 + int(length(view, end)[0])
        return end - start
