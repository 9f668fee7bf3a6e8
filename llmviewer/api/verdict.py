"""The verdict on a request: whether it fits, and the single changes of an option that were tried on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from llmviewer.api.configuration import Configuration
from llmviewer.api.trials import TENSOR, tried
from llmviewer.core.workload import Request
from llmviewer.result.result import Result
from llmviewer.result.verdict import Change, Verdict

#: Number formats that are tried, least change of the numbers first, each with the matrix dtype that it needs.
NUMBER_FORMATS: Mapping[str, Mapping[str, str]] = {
    "quantization": {"fp8": "fp8", "w8a8": "int8", "w8a16": "", "w4a16": "", "nvfp4": "fp4"},
    "kv_cache_dtype": {"fp8": ""},
}
#: Sizes of a tensor group, tried as multiples of the requested one.
MULTIPLES = (2, 4, 8, 16)
#: As many devices as the model needs, in stages of tensor groups; tried where no tensor group is large enough.
PIPELINE = ("spatial", "on")


def number_formats(configuration: Configuration) -> list[list[tuple[str, str]]]:
    """The values of each option in NUMBER_FORMATS that the chip computes natively."""
    rates = {"", *configuration.chip.matrix_flops_per_s}
    return [
        [(name, value) for value, needed in values.items() if needed in rates]
        for name, values in NUMBER_FORMATS.items()
    ]


def tensor_group(configuration: Configuration, factor: int) -> tuple[str, str]:
    """The tensor group of a multiple of the requested size."""
    return TENSOR, str(configuration.system.parallelism.tensor * factor)


def verdict(configuration: Configuration, workload: Request, result: Result) -> Verdict:
    """The verdict on the result of one point of a configuration; changes that are impossible there are left out."""
    if not result.fits:
        return Verdict(result=result, remedies=tuple(_remedies(configuration, workload, result)))
    options = [option for listed in number_formats(configuration) for option in listed]
    options.append(tensor_group(configuration, MULTIPLES[0]))
    return Verdict(result=result, changes=tuple(_changes(configuration, workload, options)))


def _remedies(configuration: Configuration, workload: Request, result: Result) -> Iterator[Change]:
    """The least tensor group or pipeline, the first number format and the largest batch that fit."""
    sizes = [*(tensor_group(configuration, factor) for factor in MULTIPLES), PIPELINE]
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
