"""Trials: changes of options and sizes, each with the answer that it would have."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from llmviewer.api.build import technique_text, with_devices
from llmviewer.api.configuration import Configuration
from llmviewer.core import arguments
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request
from llmviewer.language.option import Kind
from llmviewer.result.result import Change, Result, Verdict
from llmviewer.techniques.options import OPTIONS, WORKLOAD, with_bits
from llmviewer.techniques.registry import TECHNIQUES

TENSOR = "tensor_parallel_size"
#: Sizes that a command has without them.
SIZES: Mapping[str, Any] = {name: one.default for name, one in WORKLOAD.items()}


def flag(name: str) -> str:
    """The main spelling of an option or size on the command line."""
    return "-tp" if name == TENSOR else OPTIONS[name].spellings(name)[0]


def changed(configuration: Configuration, workload: Request, words: Mapping[str, Any]) -> tuple[Configuration, Request]:
    """The configuration and the request with other options and sizes.  Raises UserError for what is not supported."""
    sizes = {name: np.array([float(value)]) for name, value in words.items() if name in WORKLOAD}
    options = {name: str(value) if name in TECHNIQUES else value for name, value in words.items() if name not in sizes}
    return (configuration.with_options(options) if options else configuration), replace(workload, **sizes)


def tried(configuration: Configuration, workload: Request, words: Mapping[str, Any]) -> Change | None:
    """The change of some options and sizes with its result; None if it changes nothing or is not supported."""
    if all(_is_now(configuration, workload, name, value) for name, value in words.items()):
        return None
    try:
        made, request = changed(configuration, workload, words)
        result = made.answer(request)
    except UserError:  # the chip or the model does not support it
        return None
    option = " ".join(f"{flag(name)} {value}" for name, value in words.items())
    return Change(option=option, words=dict(words), result=result)


def _is_now(configuration: Configuration, workload: Request, name: str, value: Any) -> bool:
    """Whether an option or a size has a value already."""
    if name in TECHNIQUES:
        return configuration.techniques[name] == str(value)
    if name in WORKLOAD:
        return float(getattr(workload, name)[0]) == float(value)
    return bool(getattr(configuration.options, name) == value)


def run_line(
    model: Any, hardware: Any, words: Mapping[str, Any], left_out: Mapping[str, Any] = SIZES
) -> dict[str, tuple[str, ...]]:
    """Words of the run on the command line, by option.

    left_out: values of options that are not said: of words that do not tell what is stated, the default sizes.
    """
    hardware, words, _ = with_devices(hardware, with_bits(words))
    found = {"model": (_name(model),), "hardware": ("--hardware", _name(hardware))}
    for name, value in words.items():
        declared = OPTIONS[name]
        if value is None or value == left_out.get(name):
            continue
        if declared.kind is Kind.SWITCH:
            found |= {name: (flag(name),)} if value else {}
        elif declared.kind is Kind.WORDS:
            found[name] = tuple(word for one in arguments.words(name, value) for word in (flag(name), one))
        else:
            found[name] = (flag(name), technique_text(name, value) if name in TECHNIQUES else str(value))
    return found


def _name(given: Any) -> str:
    """The name or path of a model or a chip; fields of a file have none."""
    if isinstance(given, (str, os.PathLike)):
        return os.fspath(given)
    return str(getattr(given, "name", "FILE"))


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
    """The values of options of number formats that the engine has, else those that the chip computes natively."""
    if own := configuration.system.engine.number_formats:
        return [[(name, value) for value in values] for name, values in own.items()]
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
