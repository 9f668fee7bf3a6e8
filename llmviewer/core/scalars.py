"""A recorded computation as operations on plain numbers, one list for every point, that another language can run.

A recording (recording.py) made on arrays of one entry is one point.  Its arrays are taken apart into entries: sums and
extremes of a table become operations on its entries, an entry of a table that an array selects becomes a choice.  What
follows from constants alone is computed here.  Where the computation read a truth or a number from an array, a *guard*
is left: the operations hold for the points at which every guard has its value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial, reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen
from llmviewer.core.recording import OfList, Recording, UnrecordableError, Value, require

#: Numbers of operations, in the shape of the array whose entries they are.
Entries: TypeAlias = npt.NDArray[Any]

#: Operations on plain numbers -> function; truths are 1.0 and 0.0.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "mod": np.remainder,
    "max": np.maximum, "min": np.minimum, "where": np.where,
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
    "floor": np.floor, "ceil": np.ceil, "rint": np.rint, "sqrt": np.sqrt, "exp": np.exp, "log": np.log,
    "log2": np.log2, "hypot": np.hypot, "isnan": np.isnan, "abs": np.abs,
}  # fmt: skip
#: Functions of the same number of arrays, entry by entry.
SAME: dict[Any, str] = {
    **{function: name for name, function in OPERATIONS.items() if isinstance(function, np.ufunc)},
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "div", operator.pow: "pow",
    operator.mod: "mod", operator.lt: "lt", operator.le: "le", operator.eq: "eq", operator.ne: "ne",
    operator.and_: "min", operator.or_: "max", np.logical_and: "min", np.logical_or: "max", np.where: "where",
    np.float_power: "pow", operator.abs: "abs",
}  # fmt: skip
#: Functions that take all entries along an axis together.
TOGETHER: dict[Any, str] = {
    np.maximum.reduce: "max", np.minimum.reduce: "min", np.add.reduce: "add", np.max: "max", np.min: "min",
    np.any: "max", np.all: "min", np.sum: "add",
}  # fmt: skip


@frozen(slots=False, eq=False)  # no slots: what it needs is kept
class Scalars:
    """Operations that a recording left in a pool.

    guards: number of an operation -> the value that it must have.  results: numbers by name.
    """

    pool: Pool
    guards: dict[int, float]
    results: dict[str, int]

    @cached_property
    def needed(self) -> list[int]:
        """The operations and constants that guards and results need, in order."""
        return self.pool.needed((*self.guards, *self.results.values()))

    def run(self, columns: Sequence[Array]) -> tuple[dict[str, Array], npt.NDArray[np.bool_]]:
        """Results at many points by name, and whether the operations hold there.  columns: of the inputs."""
        points = np.broadcast_arrays(*(np.asarray(column, dtype=np.float64) for column in columns))
        values: dict[int, Any] = dict(enumerate(points))
        with np.errstate(all="ignore"):
            for number in self.needed:
                name, *operands = self.pool.operations[number - self.pool.inputs]
                found = OPERATIONS[name](*(values[one] for one in operands)) if name else operands[0]
                values[number] = np.asarray(found, dtype=np.float64)
        shape = points[0].shape
        holds = np.ones(shape, dtype=bool)
        for number, value in self.guards.items():
            holds &= values[number] == value
        return {name: np.broadcast_to(values[number], shape) for name, number in self.results.items()}, holds


def scalars(recording: Recording, results: dict[str, Any], pool: Pool) -> Scalars:
    """The operations of a recording on arrays of one entry, added to a pool that other recordings may share.

    results: a `Value`, or a plain number, by name.  Raises UnrecordableError for a function that has no operation here.
    """
    entries = {number: np.full(1, number, dtype=object) for number in range(pool.inputs)}
    conditions = set(recording.conditions)
    for number, value in recording.constants.items():
        entries[number] = _constant(pool, value)
    guards: dict[int, float] = {}
    for function, operands, number in recording.calls:
        given = [entries[one] for one in operands]
        if number in conditions:
            guards |= pool.guard(function, given[0])
        else:
            entries[number] = pool.applied(function, given)
    found = {
        name: pool.single(entries[one.number]) if type(one) is Value else pool.constant(float(one))
        for name, one in results.items()
    }
    return Scalars(pool=pool, guards=guards, results=found)


class Pool:
    """Operations on plain numbers, each different one once; those on constants alone are carried out.

    The first numbers are the inputs.  operations: name and numbers of the operands; of a constant "" and its value.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.operations: list[tuple[Any, ...]] = []
        self.known: dict[Any, int] = {}

    def needed(self, numbers: Iterable[int]) -> list[int]:
        """These operations and constants, and those that they need, in order."""
        waiting, found = [*numbers], set[int]()
        while waiting:
            number = waiting.pop()
            if number >= self.inputs and number not in found:
                found.add(number)
                name, *operands = self.operations[number - self.inputs]
                waiting += operands if name else ()
        return sorted(found)

    def constant(self, value: float) -> int:
        """The number of a constant."""
        return self._add(("", float(value)), repr(float(value)))

    def entries(self, value: float) -> Entries:
        """A constant as an array of one entry."""
        return np.full(1, self.constant(value), dtype=object)

    def operation(self, name: str, *operands: int) -> int:
        """The number of an operation on numbers."""
        values = [self.value(one) for one in operands]
        if all(value is not None for value in values):
            with np.errstate(all="ignore"):
                return self.constant(float(OPERATIONS[name](*map(np.float64, values))))
        same = _same(name, operands, values)
        return self._add((name, *operands), (name, *operands)) if same is None else same

    def value(self, number: int) -> float | None:
        """The value of a constant; None for any other number."""
        if number < self.inputs:
            return None
        name, *operands = self.operations[number - self.inputs]
        return None if name else operands[0]

    def _add(self, made: tuple[Any, ...], key: Any) -> int:
        if key not in self.known:
            self.known[key] = self.inputs + len(self.operations)
            self.operations.append(made)
        return self.known[key]

    def single(self, entries: Entries) -> int:
        """The number of the only entry."""
        if np.size(entries) != 1:
            raise UnrecordableError("an array of several entries is read as one")
        return int(np.asarray(entries).reshape(-1)[0])

    def guard(self, check: Any, entries: Entries) -> dict[int, float]:
        """The value that the entry of a condition must have, by its number.  check: `require` with what was read."""
        assert check.func is require
        number, answer = self.single(entries), float(check.args[1])
        if check.args[0] is bool:
            number = self.operation("ne", number, self.constant(0.0))
        if (known := self.value(number)) is None:
            return {number: answer}
        if known != answer:
            raise UnrecordableError("a condition of constants has two answers")
        return {}

    def applied(self, function: Any, given: list[Entries]) -> Entries:
        """The entries of a function of arrays."""
        named: dict[str, Any] = {}
        if isinstance(function, partial):
            function, named = function.func, function.keywords
        if isinstance(function, OfList):
            together, rest = given[: function.count], given[function.count :]
            return np.asarray(function.function(np.broadcast_arrays(*together), *rest, **named), dtype=object)
        if function in TOGETHER:
            return self._together(function, given, named)
        if function in SAME:
            return self.each(SAME[function], *given)
        if function not in OTHERS:
            raise UnrecordableError(f"{getattr(function, '__name__', function)} has no operation on plain numbers")
        return np.asarray(OTHERS[function](self, *given, **named), dtype=object)

    def each(self, name: str, *given: Entries) -> Entries:
        """An operation on arrays, entry by entry."""
        made = np.frompyfunc(partial(self.operation, name), len(given), 1)
        return np.asarray(made(*given), dtype=object)

    def _together(self, function: Any, given: list[Entries], named: dict[str, Any]) -> Entries:
        own, stated = np.asarray(given[0], dtype=object), {"axis": given[1]} if len(given) > 1 else named
        axis = stated.get("axis", 0 if function.__name__ == "reduce" else None)
        axis = self.value(self.single(axis)) if isinstance(axis, np.ndarray) else axis
        if isinstance(axis, tuple) or named.keys() - {"axis"}:
            raise UnrecordableError("entries are taken together along several axes, or kept in place")
        rows = own.reshape(-1) if axis is None else np.moveaxis(own, int(axis), 0)
        one = partial(self.each, TOGETHER[function])
        return np.asarray(reduce(one, (np.asarray(row, dtype=object) for row in rows)))


def _same(name: str, operands: tuple[int, ...], values: list[float | None]) -> int | None:
    """The operand that an operation leaves as it is, bit for bit; None if there is none."""
    if name == "where" and values[0] is not None:
        return operands[1 if values[0] else 2]
    if name in ("max", "min", "where") and operands[-2] == operands[-1]:
        return operands[-1]
    if name in ("mul", "div", "pow") and values[1] == 1.0:
        return operands[0]
    return operands[1] if name == "mul" and values[0] == 1.0 else None


def _chosen(pool: Pool, index: Entries, table: Entries) -> Any:
    """Parts of a table along its first axis, chosen by numbers in an array."""
    found = table[0]
    for row in range(1, len(table)):
        is_row = pool.each("eq", index, pool.entries(float(row)))
        found = pool.each("where", is_row, table[row], found)
    return found


def _rounded(pool: Pool, own: Entries, decimals: Entries | None = None) -> Entries:
    """Entries rounded to some decimals, halves to the even neighbour, as numpy does it."""
    if decimals is None:
        return pool.each("rint", own)
    scale = pool.entries(10.0 ** (pool.value(pool.single(decimals)) or 0.0))
    return pool.each("div", pool.each("rint", pool.each("mul", own, scale)), scale)


def _item(pool: Pool, own: Entries, index: Any) -> Any:
    """An entry, or a part, of an array."""
    if isinstance(index, np.ndarray) and index.dtype == object and index.size == 1:
        position = pool.value(pool.single(index))
        assert position is not None
        return own[int(position)]
    return own[index]


#: Functions of entries that are not one operation each.
OTHERS: dict[Any, Callable[..., Any]] = {
    operator.getitem: _item,
    np.choose: _chosen,
    np.round: _rounded,
    operator.gt: lambda pool, a, b: pool.each("lt", b, a),
    operator.ge: lambda pool, a, b: pool.each("le", b, a),
    np.greater: lambda pool, a, b: pool.each("lt", b, a),
    np.greater_equal: lambda pool, a, b: pool.each("le", b, a),
    operator.neg: lambda pool, a: pool.each("mul", a, pool.entries(-1.0)),
    operator.invert: lambda pool, a: pool.each("eq", a, pool.entries(0.0)),
    operator.floordiv: lambda pool, a, b: pool.each("floor", pool.each("div", a, b)),
    np.divmod: lambda pool, a, b: [pool.each("floor", pool.each("div", a, b)), pool.each("mod", a, b)],
    np.clip: lambda pool, a, low, high: pool.each("min", pool.each("max", a, low), high),
    np.square: lambda pool, a: pool.each("mul", a, a),
    np.ones_like: lambda pool, a: np.full(np.shape(a), pool.constant(1.0), dtype=object),
    np.zeros_like: lambda pool, a: np.full(np.shape(a), pool.constant(0.0), dtype=object),
    np.isfinite: lambda pool, a: pool.each("lt", pool.each("abs", a), pool.entries(np.inf)),
    np.atleast_1d: lambda _, a: np.atleast_1d(a),
    np.ravel: lambda _, a: np.ravel(a),
}


def _constant(pool: Pool, value: Any) -> Any:
    """The entries of a constant; what is no number, as a part of an array, stays itself."""
    if isinstance(value, (slice, tuple, str)) or value is None or value is Ellipsis:
        return value
    return np.asarray(np.frompyfunc(pool.constant, 1, 1)(np.asarray(value, dtype=np.float64)), dtype=object)
