"""The verdict on a request: whether it fits, and the single changes of an option that were tried on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np

from llmviewer.api.configuration import Configuration
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request
from llmviewer.result.result import Result
from llmviewer.result.verdict import Change, Verdict
from llmviewer.techniques.options import OPTIONS

#: Options with the values that are tried, least change of the numbers first, each with the matrix dtype that it needs.
TRIED: Mapping[str, Mapping[str, str]] = {
    "quantization": {"fp8": "fp8", "w8a8": "int8", "w8a16": "", "w4a16": "", "nvfp4": "fp4"},
    "kv_cache_dtype": {"fp8": ""},
}
#: Sizes of a tensor group, tried as multiples of the requested one.
MULTIPLES = (2, 4, 8, 16)
TENSOR = "tensor_parallel_size"


def verdict(configuration: Configuration, workload: Request, result: Result) -> Verdict:
    """The verdict on the result of one point of a configuration; changes that are impossible there are left out."""
    if not result.fits:
        return Verdict(result=result, remedies=tuple(_remedies(configuration, workload, result)))
    options = [option for listed in _number_formats(configuration) for option in listed]
    options.append((TENSOR, _multiple(configuration, MULTIPLES[0])))
    return Verdict(result=result, changes=tuple(_changes(configuration, workload, options)))


def _number_formats(configuration: Configuration) -> list[list[tuple[str, str]]]:
    """The values of each option in TRIED that the chip computes natively."""
    rates = {"", *configuration.chip.matrix_flops_per_s}
    return [[(name, value) for value, needed in values.items() if needed in rates] for name, values in TRIED.items()]


def _multiple(configuration: Configuration, factor: int) -> str:
    return str(configuration.system.parallelism.tensor * factor)


def _remedies(configuration: Configuration, workload: Request, result: Result) -> Iterator[Change]:
    """The least tensor group, the first number format and the largest batch that fit."""
    sizes = [(TENSOR, _multiple(configuration, factor)) for factor in MULTIPLES]
    for options in (sizes, *_number_formats(configuration)):
        yield from islice((change for change in _changes(configuration, workload, options) if change.result.fits), 1)
    largest = result.memory["max_batch_size"]
    if largest:
        smaller = replace(workload, batch_size=np.array([float(largest)]))
        yield Change(option=f"--batch-size {largest}", result=configuration.answer(smaller))


def _changes(configuration: Configuration, workload: Request, options: Iterable[tuple[str, str]]) -> Iterator[Change]:
    for name, value in options:
        if configuration.techniques[name] == value:
            continue
        try:
            result = configuration.with_option(name, value).answer(workload)
        except UserError:  # the chip or the model does not support it
            continue
        flag = "-tp" if name == TENSOR else OPTIONS[name].spellings(name)[0]
        yield Change(option=f"{flag} {value}", result=result)
