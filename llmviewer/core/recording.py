"""Array operations of a computation, recorded once and run again on other numbers without the Python around them.

`record` runs a computation on arrays that note every operation on them.  The `Program` is what is left: the operations
that the results need, each different one once.  It runs the same numpy functions on the same operands in the same
order, so its results agree with those of the computation to the bit.  Where the computation reads a truth (a branch) or
a float from an array, the program reads it again and refuses inputs for which it differs.  A computation that reads
arrays in any other way (shapes, text) cannot be recorded.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.frozen import frozen

#: Function, fetcher of its operands from the list of values, and place of its result.
Call: TypeAlias = tuple[Callable[..., Any], Callable[[list[Any]], Sequence[Any]], int]


class OtherAnswerError(Exception):
    """Raised where a condition has another answer than when it was recorded."""


def require(read: type, answer: float, value: Any) -> None:
    """Raise OtherAnswerError unless a value that is read as `answer` was recorded is read so again."""
    if read(value) != answer:
        raise OtherAnswerError


@dataclass(slots=True, kw_only=True, eq=False)
class Recording:
    """Operations of a computation in order, its values known by number; the first numbers are its inputs.

    inputs: their count.  calls: function, numbers of its operands, and number of its result.  conditions: numbers of
    the calls that check what was read from a value.  constants: values by number.
    """

    inputs: int
    calls: list[tuple[Callable[..., Any], tuple[int, ...], int]] = field(default_factory=list)
    conditions: list[int] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)


@frozen(eq=False)
class Program:
    """The recorded operations that the results need.

    start: values before the first operation; the inputs come first.  results: places of the results.
    """

    start: list[Any]
    calls: tuple[Call, ...]
    results: tuple[int, ...]

    def run(self, inputs: Sequence[Array]) -> tuple[Count, ...] | None:
        """Results for other inputs; None if a condition has another answer than when it was recorded."""
        values = self.start.copy()
        values[: len(inputs)] = inputs
        try:
            for function, operands, place in self.calls:
                values[place] = function(*operands(values))
        except OtherAnswerError:
            return None
        return tuple(values[place] for place in self.results)


def assembled(recording: Recording, results: Sequence[int]) -> Program:
    """The program of what results and conditions need; places of values that are read no more are used again."""
    last = dict.fromkeys((*results, *recording.conditions), len(recording.calls))
    for at, (_, operands, result) in reversed(list(enumerate(recording.calls))):
        if result in last:
            for operand in operands:
                last.setdefault(operand, at)
    kept = [*range(recording.inputs), *(number for number in recording.constants if number in last)]
    places = {number: place for place, number in enumerate(kept)}
    start = [recording.constants.get(number) for number in kept]
    calls: list[Call] = []
    free: list[int] = []
    for at, (function, operands, result) in enumerate(recording.calls):
        if result in last:
            fetch = _fetch([places[operand] for operand in operands])
            free += (places[one] for one in dict.fromkeys(operands) if last[one] == at and places[one] >= len(kept))
            if not free:
                free.append(len(start))
                start.append(None)
            places[result] = free.pop()
            calls.append((function, fetch, places[result]))
    return Program(start=start, calls=tuple(calls), results=tuple(places[number] for number in results))


def _fetch(places: list[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that takes the values at these places from a list."""
    return operator.itemgetter(*places if len(places) > 1 else (slice(places[0], places[0] + 1),))


@frozen(kw_only=False)
class OfList:
    """A function of a list of `count` arrays as one of these arrays."""

    function: Callable[..., Any]
    count: int

    def __call__(self, *operands: Any, **named: Any) -> Any:
        """The function of the list of the first `count` operands, and of the others."""
        return self.function(operands[: self.count], *operands[self.count :], **named)


#: Arrays -> results, by numpy functions and operators.
Computation: TypeAlias = Callable[[Sequence[Array]], Sequence[Count]]


class UnrecordableError(Exception):
    """Raised where a computation reads numbers in a way that a program cannot repeat."""


class Value:
    """An array of a recorded computation: its value, its number, and the recorder that notes what is done with it."""

    __slots__ = ("number", "recorder", "value")
    __hash__ = None  # type: ignore[assignment]  # as an array, so that no cache keeps it
    # counts are told from plain numbers by isinstance(count, np.ndarray)
    __class__ = property(lambda self: np.ndarray)

    def __init__(self, value: Any, number: int, recorder: Any) -> None:
        self.value, self.number, self.recorder = value, number, recorder

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **named: Any) -> Any:
        return self.recorder.call(ufunc if method == "__call__" else getattr(ufunc, method), operands, named)

    def __array_function__(self, function: Any, types: object, operands: Any, named: Mapping[str, Any]) -> Any:
        return self.recorder.call(function, operands, named)

    def __array__(self, *unused: object, **named: object) -> Any:
        raise UnrecordableError("the entries of an array are read")

    def __bool__(self) -> bool:
        return bool(self.recorder.condition(bool, self))

    def __float__(self) -> float:
        return float(self.recorder.condition(float, self))


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda own, *others: own.recorder.call(function, (own, *others), {})


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda own, other: own.recorder.call(function, (other, own), {})


for _name in "add sub mul truediv floordiv mod pow and or".split():
    setattr(Value, f"__{_name}__", _method(getattr(operator, f"__{_name}__")))
    setattr(Value, f"__r{_name}__", _swapped(getattr(operator, f"__{_name}__")))
for _name in "lt le eq ne gt ge neg abs invert getitem".split():
    setattr(Value, f"__{_name}__", _method(getattr(operator, f"__{_name}__")))


class _Recorder:
    """Notes operations on arrays; an operation that was done before is not repeated.

    known: numbers of constants, and results, by what they are.
    """

    def __init__(self, inputs: Sequence[Array]) -> None:
        self.count = 0
        self.recording = Recording(inputs=len(inputs))
        self.known: dict[object, Any] = {}
        self.inputs = [Value(value, self._next(), self) for value in inputs]

    def call(self, function: Callable[..., Any], operands: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The result of a function, noted; of a function with several results, each of them."""
        if operands and isinstance(operands[0], (list, tuple)) and any(type(one) is Value for one in operands[0]):
            function, operands = OfList(function, len(operands[0])), (*operands[0], *operands[1:])
        numbers = tuple(map(self._number, operands))
        key = (function, numbers, tuple(named.items()))
        if key not in self.known:
            plain = partial(function, **named) if named else function
            value = plain(*(one.value if type(one) is Value else one for one in operands))
            self.known[key] = self._noted(value, plain, numbers)
        found = self.known[key]
        if isinstance(found.value, tuple):
            return tuple(self.call(operator.getitem, (found, at), {}) for at in range(len(found.value)))
        if not isinstance(found.value, (np.ndarray, np.generic)) or found.value.dtype == object:
            raise UnrecordableError(f"{function} gives no array of numbers")
        return found

    def condition(self, read: type, value: Value) -> Any:
        """The truth or the number that Python reads from a value, which has to be the same in every later run."""
        answer = read(value.value)
        check = self._noted(None, partial(require, read, answer), (value.number,))
        self.recording.conditions.append(check.number)
        return answer

    def _noted(self, value: Any, function: Callable[..., Any], operands: tuple[int, ...]) -> Value:
        noted = Value(value, self._next(), self)
        self.recording.calls.append((function, operands, noted.number))
        return noted

    def _number(self, operand: Any) -> int:
        """The number of an operand; equal constants share one."""
        if type(operand) is Value:
            if operand.recorder is not self:
                raise UnrecordableError("an array of another recording")
            return operand.number
        if isinstance(operand, (list, tuple)) and any(type(one) is Value for one in operand):
            raise UnrecordableError("a list of arrays")
        # arrays stay in `recording`, so their ids stay theirs; repr tells -0.0 from 0.0
        key = (type(operand), id(operand) if isinstance(operand, np.ndarray) else repr(operand))
        if key not in self.known:
            self.known[key] = self._next()
            self.recording.constants[self.known[key]] = operand
        return self.known[key]  # type: ignore[no-any-return]

    def _next(self) -> int:
        self.count += 1
        return self.count - 1


def noted(computation: Callable[[Sequence[Any]], Any], inputs: Sequence[Array]) -> tuple[Recording, Any]:
    """The operations of a computation on these inputs, and what it returns, with a `Value` for every array."""
    recorder = _Recorder(inputs)
    found = computation(recorder.inputs)
    return recorder.recording, found


def record(computation: Computation, inputs: Sequence[Array]) -> Program | None:
    """The program of a computation that has succeeded on these inputs; None if it cannot be recorded."""
    try:
        recording, results = noted(computation, inputs)
    except Exception:  # it ran on plain arrays, so it cannot run on arrays that record
        return None
    if any(type(one) is not Value for one in results):
        return None
    return assembled(recording, [one.number for one in results])


class Programs:
    """Programs of computations that are repeated, by key; several where conditions have several answers."""

    #: Runs of a computation before it is recorded, which takes as long as a few runs.
    RUNS_BEFORE = 4
    MOST_PER_KEY = 4

    def __init__(self) -> None:
        self._runs: Counter[object] = Counter()
        self._recorded: defaultdict[object, list[Program]] = defaultdict(list)

    def run(self, key: object, inputs: Sequence[Array]) -> tuple[Count, ...] | None:
        """Results of the recorded computation; None if it is not recorded or does not hold for these inputs."""
        programs = self._recorded[key]
        for program in programs:
            results = program.run(inputs)
            if results is not None:
                if program is not programs[0]:  # the next inputs probably have the same answers
                    # a new list, because another thread may read this one
                    self._recorded[key] = [program, *(one for one in programs if one is not program)]
                return results
        return None

    def note(self, key: object, computation: Computation, inputs: Sequence[Array], results: Sequence[Count]) -> None:
        """Note that a computation gave `results`; if it is repeated, record it if its program agrees to the bit."""
        self._runs[key] += 1
        if self._runs[key] % self.RUNS_BEFORE or self._runs[key] > self.RUNS_BEFORE * self.MOST_PER_KEY:
            return
        program = record(computation, inputs)
        found = None if program is None else program.run(inputs)
        if program is not None and found is not None and all(map(_agree, found, results)):
            self._recorded[key].append(program)


def _agree(found: Count, expected: Count) -> bool:
    return np.shape(found) == np.shape(expected) and np.asarray(found).tobytes() == np.asarray(expected).tobytes()
