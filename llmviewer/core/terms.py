"""Numbers that keep the formula they are the result of, with the names that the code gives to its variables.

A computation of arrays that runs on `Term`s gives terms: each knows the function and the operands it is the result of.
Its name is that of the variable, or of the field, that holds it when the code first uses it, so the code that computes
a number is also its explanation.  Branches are taken as for plain numbers.  What does not change a number is left out:
terms of 0, factors of 1, a limit that is a plain number and is not reached, and the branch of `np.where` not taken.
"""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from llmviewer.core.recording import Value

#: Code whose variables give names, and that which it may call meanwhile.
NAMING, PACKAGE = "/llmviewer/timing/", "/llmviewer/"
#: Names of constants.
CONSTANT = re.compile(r"\b_?[A-Z][A-Z0-9_]*\b")


def nearest_frame() -> FrameType | None:
    """The nearest running function whose variables give names; None outside of the package."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and NAMING not in _path(frame):
        frame = frame.f_back if PACKAGE in _path(frame) else None
    return frame


def place(frame: FrameType) -> str:
    """First sentence of what a function says, with its file and name."""
    text = getattr(frame.f_globals.get(frame.f_code.co_name), "__doc__", None) or ""
    text = text.partition("\n")[0].partition(". ")[0].rstrip(".:")
    return f"{text} ({file(frame)})" if text else file(frame)


def said_of(name: str, frame: FrameType) -> str:
    """The comment of a constant, else the first sentence of the function that uses it, with file and function."""
    comment = _comments(frame.f_code.co_filename).get(name, "")
    return f"{comment} ({file(frame)})" if comment else f"constant of: {place(frame)}"


@cache
def _comments(path: str) -> dict[str, str]:
    """Comments `#:` of a file by the constants in the line after them."""
    found: dict[str, str] = {}
    said: list[str] = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if line.startswith("#:"):
            said.append(line[2:].strip())
            continue
        if said:
            text = " ".join(said).rstrip(".")
            found.update(dict.fromkeys(CONSTANT.findall(line.partition("=")[0]), text))
        said = []
    return found


def file(frame: FrameType) -> str:
    """File and name of a function."""
    return f"{_path(frame).rpartition(PACKAGE)[2]}: {frame.f_code.co_name}"


def name_of(value: Any, frame: FrameType) -> str:
    """The name of the variable, field or constant that holds a value; "" if none does."""
    variables = frame.f_locals
    for name, held in variables.items():
        if held is value:
            return name
    for held in variables.values():
        kind: Any = type(held)
        for name in field_names(kind):
            if getattr(held, name) is value:
                return name
    known = frame.f_globals
    return next((name for name in frame.f_code.co_names if known.get(name) is value), "")


def _path(frame: FrameType) -> str:
    return _slashed(frame.f_code.co_filename)


@cache
def _slashed(path: str) -> str:
    return path.replace(os.sep, "/")


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a record's type; none for another type."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


#: Functions of one array that leave a single number as it is.
SAME = (np.any, np.all, np.max, np.min, np.asarray, np.atleast_1d)
#: Numbers up to this one stand for 0, so that code can divide by them.
NOTHING = 1e-20


class Term(Value):
    """A number with its formula.

    function, operands: what it is the result of; None for a leaf.  name: "" until a variable holds it.  place: file and
    function of the code.  unit, source: those of a leaf.  about: what a reader of leaves attaches to it.
    """

    __slots__ = ("about", "function", "name", "operands", "place", "projections", "source", "unit")

    def __init__(self, value: Any, function: Callable[..., Any] | None = None, operands: Sequence[Any] = ()) -> None:
        super().__init__(_plain(value), 0, Terms)
        self.function, self.operands = function, tuple(operands)
        self.name = self.place = self.unit = self.source = ""
        self.about: Any = None
        self.projections: dict[int, Any] = {}

    def __array__(self, *unused: object, **named: object) -> Any:
        return np.asarray(self.value)

    @property
    def is_flag(self) -> bool:
        """Whether it is the answer of a comparison."""
        return isinstance(self.value, (bool, np.bool_))


def leaf(name: str, value: Any, unit: str, source: str, about: Any = None) -> Term:
    """A term without a formula."""
    found = Term(value)
    found.name, found.unit, found.source, found.about = name, unit, source, about
    return found


class Terms:
    """The recorder of terms."""

    @staticmethod
    def call(function: Callable[..., Any], operands: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The result of a function as a term, simplified."""
        frame = nearest_frame()
        given = [_named(one, frame) for one in operands] if frame is not None else list(operands)
        found = applied(function, given, named)
        if isinstance(found, Term) and not found.place and frame is not None:
            found.place = place(frame)
        return found

    @staticmethod
    def condition(read: type, value: Term) -> Any:
        """The truth or the number that Python reads from a term."""
        return read(value.value)


def applied(function: Callable[..., Any], operands: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """A function of terms: what it simplifies to, or a new term."""
    function = SPELLINGS.get(function, function)
    if function is np.divmod:
        return applied(np.floor, [applied(operator.truediv, operands, {})], {}), applied(np.remainder, operands, {})
    if function is operator.getitem and not isinstance(operands[1], slice):
        return projected(operands[0], int(raw(operands[1])))
    value = function(*map(raw, operands), **named)
    if function is np.size:
        return value
    if getattr(function, "__name__", "") == "reduce":
        return _extreme(operands[0], value)
    single = all(_size(raw(one)) == 1 for one in operands if not isinstance(one, slice))
    short = simplified(function, operands) if single else None
    return Term(value, function, operands) if short is None else short


def raw(operand: Any) -> Any:
    """The plain value of an operand."""
    return operand.value if type(operand) is Term else operand


def simplified(function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """The operand that a function of single numbers gives, or a shorter formula; None if there is none."""
    if function in SAME:
        return operands[0]
    if function is np.where:
        return operands[1] if raw(operands[0]) else operands[2]
    if function is np.clip:
        return _clipped(*operands)
    if len(operands) != 2 or function not in RULES:
        return None
    return RULES[function](*operands)


def _sum(a: Any, b: Any) -> Any:
    if raw(a) == 0.0 or raw(b) == 0.0:
        return b if raw(a) == 0.0 else a
    if _is(b, operator.sub) and b.operands[1] is a:  # a + (b - a), by which masks choose
        return b.operands[0]
    return None


def _product(a: Any, b: Any) -> Any:
    return b if _one(a) else a if _one(b) else None


def _quotient(a: Any, b: Any) -> Any:
    """The quotient without a division by a quotient: work over the rate that is work over a time."""
    if not _is(b, operator.truediv):
        return a if _one(b) else None
    above, below = b.operands
    if raw(above) == raw(a):
        return below
    return applied(operator.mul, (a, below), {}) if _one(above) else None


def _limit(a: Any, b: Any, best: Callable[..., Any]) -> Any:
    """The larger or smaller of two where the other one is a plain number, the same, or as good as 0."""
    if type(a) is Term and type(b) is Term and a is not b and min(abs(raw(a)), abs(raw(b))) > NOTHING:
        return None
    chosen, other = (a, b) if best(raw(a), raw(b)) == raw(a) else (b, a)
    return chosen if type(chosen) is Term or type(other) is not Term else None


def _clipped(value: Any, low: Any, high: Any) -> Any:
    return applied(np.minimum, (applied(np.maximum, (value, low), {}), high), {})


RULES: dict[Callable[..., Any], Callable[[Any, Any], Any]] = {
    operator.add: _sum,
    operator.sub: lambda a, b: a if raw(b) == 0.0 else None,
    operator.mul: _product,
    operator.truediv: _quotient,
    operator.pow: lambda a, b: a if _one(b) else None,
    np.hypot: lambda a, b: b if raw(a) == 0.0 else a if raw(b) == 0.0 else None,
    np.maximum: lambda a, b: _limit(a, b, max),
    np.minimum: lambda a, b: _limit(a, b, min),
}
#: Numpy functions that Python's operators name too.
SPELLINGS: dict[Any, Callable[..., Any]] = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul, np.divide: operator.truediv,
    np.power: operator.pow,
}  # fmt: skip


def _one(operand: Any) -> bool:
    """Whether an operand is a plain 1, or a comparison that holds."""
    return bool(raw(operand) == 1.0 and (type(operand) is not Term or operand.is_flag))


def _is(operand: Any, function: Callable[..., Any]) -> bool:
    return type(operand) is Term and operand.function is function


def _extreme(row: Term, value: Any) -> Any:
    """The smallest entry of an array as a term of the entry that wins; the others are plain numbers."""
    values = [float(one) for one in np.asarray(row.value).reshape(-1)]
    best = values.index(float(np.asarray(value).item()))
    others = [leaf("other", one, "", "") for at, one in enumerate(values) if at != best]
    return Term(value, np.minimum, [projected(row, best), *others])


def projected(operand: Any, at: int) -> Any:
    """An entry of an array along its first axis as a term of the entries that it is made of."""
    if isinstance(operand, slice) or np.size(raw(operand)) == 1:
        return operand
    if type(operand) is not Term:
        return float(np.asarray(operand[at]).item())
    if at not in operand.projections:
        operand.projections[at] = _projection(operand, at)
    return operand.projections[at]


def _projection(array: Term, at: int) -> Any:
    if array.function is None:
        return leaf(array.name.lower(), array.value[at], array.unit, array.source, array.about)
    if array.function is operator.getitem:
        source, taken = array.operands
        return projected(source, range(np.shape(source.value)[0])[taken][at])
    found = applied(array.function, [projected(one, at) for one in array.operands], {})
    if type(found) is Term and found.function is not None:
        found.name, found.place = found.name or array.name, found.place or array.place
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value
    return np.asarray(value).reshape(-1)[0] if np.size(value) == 1 else value


def _size(value: Any) -> int:
    """Entries of an array or a number; numpy's own function takes long for a number."""
    return value.size if isinstance(value, (np.ndarray, np.generic)) else np.size(value)


def _named(operand: Any, frame: FrameType) -> Any:
    """An operand with the name of the variable that holds it; a plain number becomes a leaf if it has a name."""
    if isinstance(operand, (slice, str, bool, int)) or (type(operand) is Term and operand.name):
        return operand
    if type(operand) is not Term and np.size(operand) == 1 and operand in (0.0, 1.0, np.inf):
        return operand
    name = name_of(operand, frame)
    if not name:
        return operand
    if type(operand) is Term:
        operand.name = name
        return operand
    if any(operand is one or (np.size(operand) == 1 and operand == one) for one in frame.f_code.co_consts):
        return operand
    return leaf(name.lower(), operand, "", said_of(name, frame))
