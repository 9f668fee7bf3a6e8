"""What a caller may pass, from Python or as text: checked values, or one line that says what is allowed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, quoted, unknown

Sizes: TypeAlias = "int | Sequence[int] | np.ndarray[tuple[int, ...], np.dtype[np.float64]]"

#: Sizes beyond this are a typing error.
LARGEST = 10**9


def whole(name: str, value: Any, *, least: int = 1) -> int:
    """A whole number from `least` to LARGEST."""
    if counts(value) and least <= value <= LARGEST and value == int(value):
        return int(value)
    said = f"{value:g}" if isinstance(value, float) else quoted(value)
    raise UserError(f"{name} is {said}; allowed: whole numbers from {least} to {LARGEST:,}")


def sizes(name: str, value: object) -> Array:
    """Whole numbers from 1 up, as an array of float64 (length 1 for a single number)."""
    if isinstance(value, (str, Real)):
        return np.array([whole(name, value)], dtype=np.float64)
    try:
        numbers = np.asarray(value)
    except (ValueError, TypeError, OverflowError):  # nested sequences of several lengths
        numbers = np.empty(0)
    numbers = np.atleast_1d(numbers) if numbers.dtype.kind in "iuf" else numbers
    if numbers.ndim != 1 or not numbers.size:
        raise UserError(f"{name} is {quoted(value)}; allowed: a whole number, or a flat sequence of them")
    if numbers.dtype.kind not in "iuf":  # words, truth values, or integers beyond 64 bits
        given = value if isinstance(value, (list, tuple)) else numbers.tolist()
        return np.array([whole(name, number) for number in given], dtype=np.float64)
    numbers = numbers.astype(np.float64)
    for number in numbers[~((numbers >= 1) & (numbers <= LARGEST) & (numbers == np.floor(numbers)))][:1]:
        whole(name, float(number))
    return numbers


def fraction(name: str, value: Any) -> float:
    """A number above 0, at most 1."""
    if counts(value) and 0 < value <= 1:
        return float(value)
    raise UserError(f"{name} is {quoted(value)}; allowed: above 0, at most 1")


def counts(value: object) -> bool:
    """Whether it is a number, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def number_in(text: str) -> float | int | str:
    """The number that a word of a command line says; the word itself where it says none."""
    plain = text.strip()
    if not plain.isascii() or "_" in plain:  # Python alone takes such for numbers
        return text
    for read in (int, float):
        try:
            return read(plain)
        except ValueError:
            continue
    return text


def word(name: str, value: object, allowed: Iterable[str] = (), *, hint: str = "") -> str:
    """A word, one of `allowed` where these are given."""
    if not isinstance(value, str):
        raise UserError(f"{name} is {quoted(value)}; expected a word")
    if allowed and value not in allowed:
        raise unknown(name, value, allowed, hint=hint)
    return value


def words(name: str, value: object) -> tuple[str, ...]:
    """A sequence of words; one alone is a sequence of one."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise UserError(f"{name} is {quoted(value)}; expected a sequence of words")
    return tuple(word(name, entry) for entry in value)


def path_or_name(what: str, value: object) -> str:
    """A name, or a path as text or as an object of pathlib."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise UserError(f"{what} is {quoted(value)}; expected a name, a path or an object of ours")
    return value
