"""Changes that are worth trying on a run: number formats, kernels, batch, chunk, tensor group, speculation, offload."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from llmviewer.api.configuration import Configuration
from llmviewer.api.trials import TENSOR
from llmviewer.api.verdict import MULTIPLES, PIPELINE, number_formats, tensor_group
from llmviewer.core.ir import as_built
from llmviewer.core.workload import Request
from llmviewer.result.result import Result
from llmviewer.result.stages import value_at
from llmviewer.techniques.registry import TECHNIQUES
from llmviewer.techniques.speculation.acceptance_presets import PRESETS, Preset

#: Most prompt tokens of one prefill pass that are tried.
CHUNKS = (512, 2048, 8192)
#: Shares of the weights that the host stores, where a run does not fit or offloads already: copied to the device, or
#: multiplied by the host.
SHARES = (
    "none",
    *(f"weights={share}{by}" for share in ("0.25", "0.5", "0.75", "1") for by in ("", ",compute=host")),
)
#: Plans of FlexGen, which search the shares themselves: tried on the run as asked alone, since each takes a second.
PLANS = ("flexgen", "flexgen,compute=host")
#: Kernels that are tried where no engine has its own.
KERNELS = {"fusion": "all", "attention": "flash-decoding"}
NO_ENGINE = "kernels"
#: Methods of published acceptance that run with these words alone.
METHODS = ("eagle", "eagle3", "mtp", "ngram", "lookahead")

#: Options that change the number of devices.
DEVICE_OPTIONS = (TENSOR, PIPELINE[0])

Choice = tuple[str, Any]


def choices(configuration: Configuration, result: Result) -> Iterator[Choice]:
    """Options with a value to try on a run with this result, in the order in which equal gains are ranked."""
    yield from _kernels(configuration)
    yield from (("max_num_batched_tokens", tokens) for tokens in CHUNKS)
    yield from _speculation(configuration)
    weights, cache = number_formats(configuration)
    if configuration.model.checkpoint is as_built:  # a quantized checkpoint has no weights of 16 bits to convert
        yield from weights
    yield from cache
    if _offloads(configuration, result):
        yield from (("offload", share) for share in SHARES)
    yield from _tensor_groups(configuration)
    if float(result.memory["total_bytes"]) > MULTIPLES[-1] * float(result.memory["budget_bytes"]):
        yield PIPELINE


def plans(configuration: Configuration, result: Result) -> Iterator[Choice]:
    """Plans that search the shares of offloading themselves."""
    yield from (("offload", plan) for plan in PLANS if _offloads(configuration, result))


def _offloads(configuration: Configuration, result: Result) -> bool:
    """Whether a run does not fit, or offloads already."""
    return not result.fits or not _is_default(configuration, "offload")


def larger_batches(workload: Request, result: Result) -> Iterator[Choice]:
    """Twice, four and eight times the batch and the largest that fits, which raise throughput."""
    batch, largest = int(value_at(workload.batch_size, 0)), int(result.memory["max_batch_size"] or 0)
    wanted = {batch * 2, batch * 4, batch * 8, largest}
    yield from (("batch_size", size) for size in sorted(wanted) if batch < size <= largest)


def smaller_batches(workload: Request, result: Result) -> Iterator[Choice]:
    """Parts of the batch and the largest that fits, for a run that does not fit or breaks a limit."""
    batch, largest = int(value_at(workload.batch_size, 0)), int(result.memory["max_batch_size"] or 0)
    wanted = {batch // 2, batch // 4, batch // 8, min(largest, batch - 1)}
    yield from (("batch_size", size) for size in sorted(wanted, reverse=True) if size > 0)


def _kernels(configuration: Configuration) -> Iterator[Choice]:
    if configuration.options.engine == NO_ENGINE:
        defaults = ((name, value) for name, value in KERNELS.items())
        yield from ((name, value) for name, value in defaults if _is_default(configuration, name))


def _is_default(configuration: Configuration, name: str) -> bool:
    """Whether an option of a technique was left at its default."""
    return configuration.techniques[name] == TECHNIQUES[name].default


def _tensor_groups(configuration: Configuration) -> Iterator[Choice]:
    """Multiples of the tensor group that one link joins."""
    for factor in MULTIPLES:
        name, size = tensor_group(configuration, factor)
        if int(size) <= min(configuration.chip.near, 8.0):
            yield name, size


def _speculation(configuration: Configuration) -> Iterator[Choice]:
    """Methods with a published acceptance of this model, with as many draft tokens as measured and half of them."""
    for preset in PRESETS.values():
        if preset.method in METHODS and not preset.tree_tokens and _is_target(preset, configuration.model.name):
            for tokens in dict.fromkeys((preset.drafted, -(-preset.drafted // 2))):
                yield "speculative", f"{preset.method},tokens={tokens},acceptance={preset.name}"


def _is_target(preset: Preset, model: str) -> bool:
    """Whether acceptance was measured with a model: `Llama-3.1-8B-Instruct` is `llama-3.1-8b`."""
    target = re.sub(r"\s*\(.*\)|-instruct", "", preset.target.lower()).strip().replace(" ", "-")
    return target == model.lower().removesuffix("-instruct")


def acceptance_of(value: str) -> Preset | None:
    """The published acceptance that a value of --speculative names."""
    found = re.search(r"acceptance=([^,]+)", value)
    return PRESETS.get(found[1]) if found else None
