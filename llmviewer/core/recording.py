"""Array operations of a computation, recorded once and run again on other numbers without the Python around them.

`record` runs a computation on arrays that note every operation on them.  The `Program` is what is left: the operations
that the results need, each different one once.  It runs the same numpy functions on the same operands in the same
order, so its results agree with those of the computation to the bit.  A computation that reads numbers other than
through these operations (a shape, a float, a branch for each entry) cannot be recorded; where it only asks whether
something holds, the program asks again and refuses numbers for which the answer differs.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from llmviewer.core.counts import Array, Count

#: Arrays -> results, by numpy functions and operators.
Computation: TypeAlias = Callable[[Sequence[Array]], Sequence[Count]]
#: Function, fetcher of its operands from the list of values, and place of its result.
Call: TypeAlias = tuple[Callable[..., Any], Callable[[list[Any]], Sequence[Any]], int]


class UnrecordableError(Exception):
    """Raised where a computation reads numbers in a way that a program cannot repeat."""


class OtherAnswerError(Exception):
    """Raised where a condition has another answer than when it was recorded."""


def _require(answer: object, condition: Any) -> None:
    """Raise OtherAnswerError unless a condition still has its recorded answer."""
    if bool(condition) is not answer:
        raise OtherAnswerError


class _Value:
    """An array of a recorded computation: its value, its number, and the recorder that notes what is done with it."""

    __slots__ = ("number", "recorder", "value")
    __hash__ = None  # type: ignore[assignment]  # as an array, so that no cache keeps it
    # counts are told from plain numbers by isinstance(count, np.ndarray)
    __class__ = property(lambda self: np.ndarray)  # type: ignore[assignment]

    def __init__(self, value: Any, number: int, recorder: _Recorder) -> None:
        self.value, self.number, self.recorder = value, number, recorder

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **named: Any) -> Any:
        return self.recorder.call(ufunc if method == "__call__" else getattr(ufunc, method), operands, named)

    def __array_function__(self, function: Any, types: object, operands: Any, named: Mapping[str, Any]) -> Any:
        return self.recorder.call(function, operands, named)

    def __array__(self, *unused: object, **named: object) -> Any:
        raise UnrecordableError("the entries of an array are read")

    def __bool__(self) -> bool:
        return self.recorder.condition(self)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda own, *others: own.recorder.call(function, (own, *others), {})


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda own, other: own.recorder.call(function, (other, own), {})


for _name in "add sub mul truediv floordiv mod pow and or".split():
    setattr(_Value, f"__{_name}__", _method(getattr(operator, f"__{_name}__")))
    setattr(_Value, f"__r{_name}__", _swapped(getattr(operator, f"__{_name}__")))
for _name in "lt le eq ne gt ge neg abs invert getitem".split():
    setattr(_Value, f"__{_name}__", _method(getattr(operator, f"__{_name}__")))


class _Recorder:
    """The operations of a computation in order; an operation that was done before is not repeated.

    calls: function, numbers of its operands, and number of its result.  conditions: numbers of the calls that check a
    condition.  constants: values by number.  known: numbers of constants, and results, by what they are.
    """

    def __init__(self, inputs: Sequence[Array]) -> None:
        self.count = 0
        self.calls: list[tuple[Callable[..., Any], tuple[int, ...], int]] = []
        self.conditions: list[int] = []
        self.constants: dict[int, Any] = {}
        self.known: dict[object, Any] = {}
        self.inputs = [_Value(value, self._next(), self) for value in inputs]

    def call(self, function: Callable[..., Any], operands: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The result of a function, noted; of a function with several results, each of them."""
        numbers = tuple(map(self._number, operands))
        key = (function, numbers, tuple(named.items()))
        if key not in self.known:
            plain = partial(function, **named) if named else function
            value = plain(*(one.value if type(one) is _Value else one for one in operands))
            self.known[key] = self._noted(value, plain, numbers)
        found = self.known[key]
        if isinstance(found.value, tuple):
            return tuple(self.call(operator.getitem, (found, at), {}) for at in range(len(found.value)))
        if not isinstance(found.value, (np.ndarray, np.generic)) or found.value.dtype == object:
            raise UnrecordableError(f"{function} gives no array of numbers")
        return found

    def condition(self, value: _Value) -> bool:
        """The answer of a condition, which every later run has to share."""
        answer = bool(value.value)
        self.conditions.append(self._noted(None, partial(_require, answer), (value.number,)).number)
        return answer

    def _noted(self, value: Any, function: Callable[..., Any], operands: tuple[int, ...]) -> _Value:
        noted = _Value(value, self._next(), self)
        self.calls.append((function, operands, noted.number))
        return noted

    def _number(self, operand: Any) -> int:
        """The number of an operand; equal constants share one."""
        if type(operand) is _Value:
            if operand.recorder is not self:
                raise UnrecordableError("an array of another recording")
            return operand.number  # type: ignore[no-any-return]
        if isinstance(operand, (list, tuple)) and any(type(one) is _Value for one in operand):
            raise UnrecordableError("a list of arrays")
        # arrays stay in `constants`, so their ids stay theirs; repr tells -0.0 from 0.0
        key = (type(operand), id(operand) if isinstance(operand, np.ndarray) else repr(operand))
        if key not in self.known:
            self.known[key] = self._next()
            self.constants[self.known[key]] = operand
        return self.known[key]  # type: ignore[no-any-return]

    def _next(self) -> int:
        self.count += 1
        return self.count - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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


def record(computation: Computation, inputs: Sequence[Array]) -> Program | None:
    """The program of a computation that has succeeded on these inputs; None if it cannot be recorded."""
    recorder = _Recorder(inputs)
    try:
        results = computation(recorder.inputs)  # type: ignore[arg-type]
    except Exception:  # it ran on plain arrays, so it cannot run on arrays that record
        return None
    if any(type(one) is not _Value for one in results):
        return None
    return _assembled(recorder, [one.number for one in results])  # type: ignore[union-attr]


def _assembled(recorder: _Recorder, results: list[int]) -> Program:
    """The program of what results and conditions need; places of values that are read no more are used again."""
    last = dict.fromkeys((*results, *recorder.conditions), len(recorder.calls))
    for at, (_, operands, result) in reversed(list(enumerate(recorder.calls))):
        if result in last:
            for operand in operands:
                last.setdefault(operand, at)
    kept = [*range(len(recorder.inputs)), *(number for number in recorder.constants if number in last)]
    places, free = {number: place for place, number in enumerate(kept)}, []
    start, calls = [recorder.constants.get(number) for number in kept], []
    for at, (function, operands, result) in enumerate(recorder.calls):
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
                    programs.sort(key=lambda one: one is not program)
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
