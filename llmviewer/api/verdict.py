"""The verdict on a request: whether it fits, and the single changes of an option that were tried on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from llmviewer.api.configuration import Configuration
from llmviewer.api.trials import MULTIPLES, number_formats, tensor_group, tried
from llmviewer.core.workload import Request
from llmviewer.result.result import Result
from llmviewer.result.verdict import Change, Verdict


def verdict(configuration: Configuration, workload: Request, result: Result) -> Verdict:
    """The verdict on the result of one point of a configuration; changes that are impossible there are left out."""
    if not result.fits:
        return Verdict(result=result, remedies=tuple(_remedies(configuration, workload, result)))
    options = [option for listed in number_formats(configuration) for option in listed]
    options.append(tensor_group(configuration, MULTIPLES[0]))
    return Verdict(result=result, changes=tuple(_changes(configuration, workload, options)))


def _remedies(configuration: Configuration, workload: Request, result: Result) -> Iterator[Change]:
    """The least tensor group, the first number format and the largest batch that fit."""
    sizes = [tensor_group(configuration, factor) for factor in MULTIPLES]
    for options in (sizes, *number_formats(configuration)):
        yield from islice((change for change in _changes(configuration, workload, options) if change.result.fits), 1)
    largest = result.memory["max_batch_size"]
    if largest:
        yield from _changes(configuration, workload, [("batch_size", largest)])


def _changes(
    configuration: Configuration, workload: Request, options: Iterable[tuple[str, str | int]]
) -> Iterator[Change]:
    made = (tried(configuration, workload, {name: value}) for name, value in options)
    return (change for change in made if change is not None)
