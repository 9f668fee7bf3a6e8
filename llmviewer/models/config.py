"""Reading a config.json field by field: every architectural field is consumed, ignored with a reason, or an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmviewer.core.errors import UserError, quoted, shown, unknown
from llmviewer.models.bookkeeping import BOOKKEEPING

#: Larger sizes than this are a typing error, not a model.
ABSURD = 10**8
#: The field that says in which formats a checkpoint is stored.
STORED = "quantization_config"


class Config:
    """A view of a config that remembers which fields were read.  where: what error messages call it."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields = fields
        self.where = where
        self.read: set[str] = set()
        self.parts: dict[str, Config] = {}

    def has(self, name: str) -> bool:
        """Whether the field is there and not null; counts as reading it."""
        self.read.add(name)
        return self.fields.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """The raw value; null counts as missing."""
        return self.fields[name] if self.has(name) else default

    def defaults(self, **values: Any) -> None:
        """What the architecture's class takes for fields that are missing (an explicit null stays null)."""
        self.fields = {**values, **self.fields}

    def one_of(self, *names: str) -> str:
        """The first of several spellings that is there; the first of all where none is."""
        found = [name for name in names if self.has(name)]
        return found[0] if found else names[0]

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = ABSURD) -> int:
        """A whole number from `least` to `most`; without a default the field is needed."""
        value = self.get(name, default)
        if value is None:
            raise UserError(f"{self.where}: missing field '{name}'")
        whole = value.is_integer() if isinstance(value, float) else isinstance(value, int)
        if isinstance(value, bool) or not whole:
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}, expected a whole number")
        if not least <= value <= most:
            raise UserError(f"{self.where}: field '{name}' is {shown(value)}, expected {least} to {most}")
        return int(value)

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}, expected a number")
        return float(value)

    def fraction(self, name: str, default: float) -> float:
        """A number from 0 to 1."""
        value = self.number(name, default)
        if not 0.0 <= value <= 1.0:
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}, expected 0 to 1")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}, expected true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A word; without a default the field is needed."""
        value = self.get(name, default)
        if value is None:
            raise UserError(f"{self.where}: missing field '{name}'")
        if not isinstance(value, str):
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}, expected a word")
        return value

    def words(self, name: str, allowed: Mapping[str, Any] | tuple[str, ...], length: int) -> list[str]:
        """A list of `length` words, each one of `allowed` (layer_types)."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) < length:
            raise UserError(f"{self.where}: field '{name}' must list {length} layers")
        for word in value[:length]:
            if word not in allowed:
                raise unknown(f"entry of {name}", word, allowed, where=self.where)
        return list(value[:length])

    def numbers(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """A list of whole numbers (the layers with experts); `default` where it is missing."""
        value = self.get(name, list(default))
        if not isinstance(value, list) or not all(isinstance(entry, int) for entry in value):
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}, expected a list of whole numbers")
        return list(value)

    def expect(self, name: str, *values: Any) -> None:
        """A field we understand only at these values (or when missing)."""
        value = self.get(name)
        if value is not None and value not in values:
            allowed = ", ".join(map(shown, values))
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}; understood: {allowed}")

    def ignore(self, *names: str) -> None:
        """Fields that do not matter for this architecture's shapes."""
        self.read.update(names)

    def part(self, name: str) -> Config:
        """A nested config (`text_config`), checked for leftovers like this one."""
        value = self.get(name)
        if not isinstance(value, Mapping):
            raise UserError(f"{self.where}: field '{name}' must be a mapping of fields")
        return self.parts.setdefault(name, Config(value, f"{self.where}: {name}"))

    def leftovers(self) -> list[str]:
        """Fields nobody read and no list excuses."""
        own = [name for name in self.fields if name not in self.read and name not in BOOKKEEPING]
        return own + [name for part in self.parts.values() for name in part.leftovers()]

    def finish(self, ignored: tuple[str, ...] = ()) -> None:
        """Raise for the first architectural field that was not understood."""
        left = [name for name in self.leftovers() if name not in ignored]
        if left:
            are = "are" if len(left) > 1 else "is"
            names = ", ".join(quoted(name) for name in left[:5]) + (", …" if len(left) > 5 else "")
            raise UserError(
                f"{self.where}: field {names} {are} not understood for this architecture; it may change the shapes "
                f"(go on without it: --ignore-field {shown(left[0])})"
            )
