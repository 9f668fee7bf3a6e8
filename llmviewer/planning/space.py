"""The configurations that `size` considers: engines, number formats and layouts of each chip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from llmviewer.api import build
from llmviewer.api.configuration import Configuration, configuration
from llmviewer.core.errors import UserError
from llmviewer.core.ir import as_built
from llmviewer.hardware.chip import Chip
from llmviewer.models.model import Model
from llmviewer.simulation.call import BATCHING, ENGINE

#: Sizes of tensor groups that are tried where the user lists none.
DEGREES = (1, 2, 4, 8)
#: Formats of linear layers that are tried where the user lists none, best first, with the matrix dtype that they need.
#: Four-bit weights change answers more; users list them.
FORMATS = {"fp8": "fp8", "w8a8": "int8"}
#: Engine of ideal times.
NO_ENGINE = "kernels"
LAYOUT = ("tensor_parallel_size", "data_parallel_size", "expert_parallel_size")
#: Options that `size` searches unless the user lists values, beside the engine's limits on a step.
SEARCHED = ("engine", "quantization", "kv_cache_dtype", *LAYOUT)
#: Defaults of `simulate`, which a configuration does not repeat.
DEFAULTS: Mapping[str, str] = {
    "engine": ENGINE,
    "batching": BATCHING,
    "quantization": "none",
    "kv_cache_dtype": "auto",
    **dict.fromkeys(LAYOUT, "1"),
}
#: Words of one configuration by the names of options.
Words = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Structure:
    """A replica whose passes are priced once: a chip, number formats, a layout, an engine.

    hardware: name or path of the chip.  options: words of `simulate` that are not its defaults.
    """

    hardware: str
    options: Words
    configuration: Configuration

    @property
    def ranks(self) -> int:
        """Replicas of the model that share experts and serve together."""
        return self.configuration.system.parallelism.data

    @property
    def devices(self) -> int:
        """Devices of one replica with all its ranks."""
        return self.configuration.system.parallelism.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A structure that cannot run, and why in one line."""

    hardware: str
    options: Words
    reason: str


def structures(
    model: Any, hardware: str, allowed: Mapping[str, Sequence[Any]], most_devices: int
) -> Iterator[Structure | Refusal]:
    """The structures of one chip, fewest devices first; those that the model or engine does not support as refusals.

    model: as of `analyze`.  allowed: values of options that the user lists; others of SEARCHED are tried by rules.
    Raises UserError for an unknown model or chip.
    """
    chip = build.chip_of(hardware)
    loaded = build.model_of(model, build.options_of(_of_the_model(allowed)))
    fixed = {name: values for name, values in allowed.items() if name not in SEARCHED}
    lists = {
        **fixed,
        "engine": allowed.get("engine", (ENGINE,) if allowed.get("efficiency") != ("ideal",) else (NO_ENGINE,)),
        "quantization": allowed.get("quantization") or _formats(loaded, chip),
        "kv_cache_dtype": allowed.get("kv_cache_dtype") or _cache_formats(chip),
    }
    for layout in _layouts(loaded, chip, allowed, most_devices):
        for values in product(*lists.values()):
            words = dict(zip(lists, values, strict=True)) | layout
            yield _structure(loaded, chip, hardware, words)


def _of_the_model(allowed: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Words that choose how a config is read."""
    names = ("dtype", "ignore_fields", "trace_model", "latent_attention")
    return {name: allowed[name][0] for name in names if name in allowed}


def _structure(model: Model, chip: Chip, hardware: str, words: Words) -> Structure | Refusal:
    options = {name: value for name, value in words.items() if str(value) != str(DEFAULTS.get(name, ""))}
    try:
        made = configuration(model, chip, **{"engine": ENGINE, "batching": BATCHING, **options})
    except UserError as error:
        return Refusal(hardware=hardware, options=options, reason=str(error))
    return Structure(hardware=hardware, options=options, configuration=made)


def _formats(model: Model, chip: Chip) -> tuple[str, ...]:
    """The checkpoint's format, and the widest format of 8 bits that the chip computes natively."""
    if model.checkpoint is not as_built:
        return ("none",)
    native = [name for name, needed in FORMATS.items() if needed in chip.matrix_flops_per_s]
    return ("none", *native[:1])


def _cache_formats(chip: Chip) -> tuple[str, ...]:
    return ("auto", "fp8") if "fp8" in chip.matrix_flops_per_s else ("auto",)


def _layouts(
    model: Model, chip: Chip, allowed: Mapping[str, Sequence[Any]], most_devices: int
) -> Iterator[dict[str, str]]:
    """Sizes of tensor, data and expert groups, fewest devices first."""
    if any(name in allowed for name in LAYOUT):
        lists = [[str(value) for value in allowed.get(name, ("1",))] for name in LAYOUT]
        yield from (dict(zip(LAYOUT, sizes, strict=True)) for sizes in product(*lists))
        return
    routed = model.active_parameters < model.parameters
    for degree in DEGREES:
        if degree > min(chip.near, most_devices):
            return
        sizes = [(degree, 1, 1)]
        if routed and degree > 1:
            sizes += [(degree, 1, degree), (1, degree, degree)]
        yield from (dict(zip(LAYOUT, map(str, one), strict=True)) for one in sizes)
