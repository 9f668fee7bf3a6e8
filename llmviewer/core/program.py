"""Array operations that were recorded once, as a list that runs on other numbers without the Python around them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from llmviewer.core.counts import Array, Count

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
