"""Records of files: a frozen dataclass is read from a mapping of YAML or JSON, as its fields declare.

A field is read as its annotation says (`float`, `str | None`, `Mapping[str, float]`, `tuple[str, ...]`), or in a form
of its own: `field(metadata=stated(number(0, 1), key="share"))`.  One without a default is required.  A wrong value is a
UserError of one line: `mine.yaml: links.nvlink.devices: expected a number from 1, got 'x'`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from datetime import date
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen

#: The value in a file -> the value of the field.  Raises UserError.
Form: TypeAlias = Callable[[Any], Any]
Record = TypeVar("Record")
#: Key in the metadata of a field.
FILE = "file"
#: Metadata of a field that no file states.
ABSENT: Mapping[str, Any] = {FILE: None}
NONE_BESIDE: Mapping[str, Form] = {}
#: Largest number, and the least above 0.
MOST, LEAST = sys.float_info.max, sys.float_info.min


@frozen(kw_only=False)
class Entry:
    """A field of a record as files state it."""

    name: str
    form: Form
    required: bool


class _PlacedError(UserError):
    """An error that begins with the key of a value."""


def stated(form: Form | None = None, key: str = "") -> Mapping[str, Any]:
    """Metadata of a field that files state under another key, or in a form that its annotation does not say."""
    return {FILE: (form, key)}


@cache
def entries(kind: type) -> Mapping[str, Entry]:
    """Key in files -> field of a record, in the order of the fields; without those that no file can state."""
    found = {}
    for own in fields(kind):
        stating = own.metadata.get(FILE, (None, ""))
        form = stating and own.init and (stating[0] or _form_of(str(own.type)))
        if form:
            required = own.default is MISSING and own.default_factory is MISSING
            found[stating[1] or own.name] = Entry(own.name, form, required)
    return found


def split(
    kind: type,
    content: Any,
    where: str = "",
    *,
    beside: Mapping[str, Form] = NONE_BESIDE,
    given: Collection[str] = (),
    required: Iterable[str] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Field -> value, of the fields of a record that a mapping states, and the values of its other keys.

    where: the file in errors.  beside: keys that no field holds -> their forms.  given: fields that the mapping may not
    state.  required: keys beside those of fields without a default.  All are in the order of their declaration.
    Raises UserError for anything but a mapping, an unknown key, a missing one, and a value that its form refuses.
    """
    known = {key: own for key, own in entries(kind).items() if own.name not in given}
    with placed(where):
        check(content, (*known, *beside), [*(key for key, own in known.items() if own.required), *required])
        found = {own.name: at(key, own.form, content[key]) for key, own in known.items() if key in content}
        return found, {key: at(key, form, content[key]) for key, form in beside.items() if key in content}


def values(kind: type, content: Any, where: str = "", **others: Any) -> dict[str, Any]:
    """Field -> value, of the fields of a record that a mapping states.  others: as of `split`."""
    return split(kind, content, where, **others)[0]


def read(
    kind: Callable[..., Record],
    content: Any,
    where: str = "",
    *,
    beside: Mapping[str, Form] = NONE_BESIDE,
    required: Iterable[str] = (),
    **given: Any,
) -> Record:
    """The record that a mapping states.  given: values of fields that it may not state.  Otherwise as `split`."""
    with placed(where):
        return kind(**values(kind, content, beside=beside, given=given, required=required), **given)  # type: ignore[arg-type]


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Begin errors with the file that they are about; as they are if it is empty."""
    try:
        yield
    except UserError as error:
        if not where:
            raise
        raise UserError(f"{where}: {error.marked}") from error


def of_file(where: str, form: Form, content: Any) -> Any:
    """The value that a form makes of the content of a file, which begins its errors."""
    with placed(where):
        return form(content)


def at(key: object, form: Form, value: Any) -> Any:
    """The value that a form makes of that of a key, which begins its errors."""
    try:
        return form(value)
    except UserError as error:
        raise _PlacedError(f"{key}{'.' if isinstance(error, _PlacedError) else ': '}{error.marked}") from error


def check(content: Any, known: Collection[str], required: Iterable[str] = ()) -> None:
    """Raise UserError for anything but a mapping, and for an unknown or a missing key."""
    for key in mapping(content):
        if key not in known:
            raise unknown("key", key, known)
    if missing := [key for key in required if key not in content]:
        raise UserError(f"missing {', '.join(missing)}")


def refusal(expected: str, value: Any) -> UserError:
    """The error of a value of another kind."""
    return UserError(f"expected {expected}, got {quoted(value)}")


def of_type(kind: type, expected: str) -> Form:
    """A value of a type, as it is.  expected: what errors call it."""

    def form(value: Any) -> Any:
        if not isinstance(value, kind):
            raise refusal(expected, value)
        return value

    return form


anything, text, switch = of_type(object, ""), of_type(str, "text"), of_type(bool, "true or false")
mapping = of_type(Mapping, "a mapping")


def filled(value: Any) -> str:
    """A text that says something, without blanks around it."""
    if not isinstance(value, str) or not value.strip():
        raise refusal("text", value)
    return value.strip()


def day(value: Any) -> str:
    """A day, such as 2026-09-25."""
    try:
        return date.fromisoformat(text(value)).isoformat()
    except ValueError as error:
        raise refusal("a day such as 2026-09-25", value) from error


def number(low: float = 0.0, high: float = MOST, *, factor: float = 1.0, expected: str = "") -> Form:
    """A finite number from `low` to `high`, times `factor`.  expected: what errors call it."""
    ends = f" from {low:g}" * (low > -MOST) + f" to {high:g}" * (high < MOST)
    expected = expected or f"a {'finite ' * (high == MOST)}number{ends}"

    def form(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise refusal(expected, value)
        return float(value) * factor

    return form


def whole(low: int = 0, high: float = MOST) -> Form:
    """A whole number from `low` to `high`."""
    expected = f"a whole number from {low}" + f" to {high:g}" * (high < MOST)

    def form(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise refusal(expected, value)
        return value

    return form


def choice(noun: str, words: Iterable[str]) -> Form:
    """One of some words."""
    known = tuple(words)

    def form(value: Any) -> str:
        if value not in known:
            raise unknown(noun, value, known)
        return str(value)

    return form


def or_null(form: Form) -> Form:
    """A value, or null."""
    return lambda value: None if value is None else form(value)


def unchanged(form: Form) -> Form:
    """A value that a form takes, as the file has it: a whole number stays one."""
    return lambda value: (form(value), value)[1]


def listed(form: Form = text, least: int = 0) -> Form:
    """A list, as a tuple; errors count its entries from 1.  least: fewest entries."""

    def tuple_of(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise refusal("a list", value)
        if len(value) < least:
            raise UserError(f"expected a list of {least} or more, got {len(value)}")
        return tuple(at(place, form, one) for place, one in enumerate(value, 1))

    return tuple_of


def numbers(count: int, form: Form | None = None, *, rising: bool = False) -> Form:
    """So many numbers, as a tuple.  rising: none is less than the one before."""
    each = listed(form or NUMBER)

    def tuple_of(value: Any) -> tuple[float, ...]:
        found: tuple[float, ...] = each(value)
        if len(found) != count:
            raise UserError(f"expected {count} numbers, got {len(found)}")
        if rising and list(found) != sorted(found):
            raise UserError(f"expected ascending values, got {', '.join(f'{one:g}' for one in found)}")
        return found

    return tuple_of


def keyed(**forms: Form) -> Form:
    """A mapping with these keys and no others, each in its form."""

    def dict_of(value: Any) -> dict[str, Any]:
        check(value, forms, forms)
        return {key: at(key, form, value[key]) for key, form in forms.items()}

    return dict_of


def mapped(form: Form, keys: Collection[str] = (), noun: str = "key") -> Form:
    """A mapping of texts to values that callers cannot change, since files are cached.  keys: all that it may have."""

    def proxy_of(value: Any) -> Mapping[str, Any]:
        for key in mapping(value):
            if keys and key not in keys:
                raise unknown(noun, key, keys)
            if not isinstance(key, str):
                raise UserError(f"expected texts as keys, got {quoted(key)}")
        return MappingProxyType({key: at(key, form, own) for key, own in value.items()})

    return proxy_of


#: Metadata of a field with a text that says something.
FILLED = stated(filled)
NUMBER, ABOVE_ZERO, ANY_NUMBER = number(), number(LEAST, expected="a finite number above 0"), number(-MOST)
_PLAIN: Mapping[str, Form] = {"str": text, "float": NUMBER, "int": whole(), "bool": switch, "Any": anything}


def _form_of(annotation: str) -> Form | None:
    """The form that an annotation says; None if it is none of files."""
    if annotation.endswith(" | None"):
        form = _form_of(annotation.removesuffix(" | None"))
        return form and or_null(form)
    outer, _, inner = annotation.removesuffix("]").partition("[")
    first, _, rest = inner.partition(", ")
    if outer == "Mapping" and (form := _form_of(rest)):
        return mapped(form)
    if outer in ("tuple", "Sequence") and (form := _form_of(first)):
        return listed(form) if rest in ("", "...") else numbers(inner.count(", ") + 1)
    return _PLAIN.get(annotation)
