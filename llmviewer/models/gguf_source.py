"""Access to the fields and tensors of a GGUF header of one architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from llmviewer.core.errors import UserError, printable

if TYPE_CHECKING:
    from llmviewer.models.gguf_header import Header, StoredTensor

#: Value of a field of all architectures that a config does not have.
DROPPED = object()


class Source:
    """The header of one file, and access to the fields of its architecture.  where: the file in error messages."""

    def __init__(self, header: Header, where: str) -> None:
        self.where = where
        self.tensors: Mapping[str, StoredTensor] = header.tensors
        self.fields = header.fields
        self.architecture = str(header.fields.get("general.architecture", ""))

    def get(self, name: str) -> Any:
        """The value of a field of the architecture; a list of equal values is that value; None if missing."""
        value = self.fields.get(f"{self.architecture}.{name}")
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise UserError(f"{self.where}: field '{name}' differs between layers, which is not supported")
            return value[0]
        return value

    def listed(self, name: str) -> list[Any]:
        """The values of a field for each layer; one value is that of all layers, none an empty list."""
        value = self.fields.get(f"{self.architecture}.{name}")
        if isinstance(value, list):
            return value
        return [] if value is None else [value] * int(self.get("block_count") or 0)

    def differs(self, name: str) -> bool:
        """Whether a field has different values in different layers."""
        return len(set(self.listed(name))) > 1

    def has(self, tensor: str) -> bool:
        """Whether the first layer has a tensor (`attn_q.bias`)."""
        return f"blk.0.{tensor}" in self.tensors

    def renamed(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Fields of config.json that the header states.  names: field of config.json -> field of the header."""
        return {ours: value for ours, theirs in names.items() if (value := self.get(theirs)) is not None}

    def size(self, tensor: str, dimension: int) -> int:
        """A dimension of a tensor.  Raises UserError if the file does not have it."""
        stored = self.tensors.get(tensor)
        if stored is None or dimension >= len(stored.shape):
            raise UserError(f"{self.where}: tensor '{printable(tensor)}' is missing")
        return stored.shape[dimension]


Names: TypeAlias = Mapping[str, str]
Family: TypeAlias = Callable[[Source], dict[str, Any]]
