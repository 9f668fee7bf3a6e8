"""The configurations that `size` considers: engines, number formats and layouts of each chip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from llmviewer.api import build, devices
from llmviewer.api.configuration import Configuration, on_devices
from llmviewer.core import arguments
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import as_built
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.names import counted, is_host, listed
from llmviewer.models.model import Model
from llmviewer.simulation.call import BATCHING
from llmviewer.techniques.options import MODEL_OPTIONS
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.timing.engine import load, of_a_server
from llmviewer.timing.engine_serving import AT_A_DESK, ENGINE

#: Sizes of tensor groups that are tried where the user lists none, and those across nodes where a network is named.
DEGREES, ACROSS_NODES = (1, 2, 4, 8), (16, 32)
#: Formats of linear layers that are tried where the user lists none, best first, with the matrix dtype that they need.
FORMATS = {"fp8": "fp8", "w8a8": "int8"}
#: Bits of a weight below which a format is marked, since it changes answers more than others.
FEW_BITS = 5.0
#: Engine of ideal times.
NO_ENGINE = "kernels"
LAYOUT = ("tensor_parallel_size", "data_parallel_size", "expert_parallel_size")
#: Options that `size` searches unless the user lists values, beside the engine's limits on a step.
SEARCHED = ("engine", "quantization", "kv_cache_dtype", *LAYOUT)
#: Defaults of `simulate`, which a configuration does not repeat; an engine on chips that have another one by default.
DEFAULTS: Mapping[str, str] = {
    "engine": ENGINE,
    "batching": BATCHING,
    "quantization": "none",
    "kv_cache_dtype": "auto",
    **dict.fromkeys(LAYOUT, "1"),
}
#: Words of one configuration by the names of options.
Words = Mapping[str, Any]


@frozen
class FourBits:
    """A format with 4-bit weights and the chips whose engines have kernels for it: of a maker, with a matrix rate."""

    maker: str
    needed: str
    chips: str
    source: str


#: Formats with 4-bit weights that are tried where the user lists none: the first one that the chip has kernels for.
FOUR_BITS: Mapping[str, FourBits] = {
    "nvfp4": FourBits(
        maker="NVIDIA",
        needed="fp4",
        chips="chips of NVIDIA with FP4 units",
        source="https://developer.nvidia.com/blog/introducing-nvfp4-for-efficient-and-accurate-low-precision-inference/",
    ),
    "awq": FourBits(
        maker="NVIDIA",
        needed="int8",
        chips="chips of NVIDIA from Turing on",
        source="https://docs.vllm.ai/en/latest/features/quantization/",
    ),
}


@frozen(eq=False)
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

    @property
    def chips(self) -> tuple[Chip, ...]:
        """The chip, or those of a sum of devices."""
        return sum_of(self.hardware) or (self.configuration.chip,)


@frozen
class Refusal:
    """A structure that cannot run, and why in one line."""

    hardware: str
    options: Words
    reason: str


def sum_of(hardware: Any) -> tuple[Chip, ...]:
    """The chips of unlike devices (`rtx-4090+rtx-3090`, `rtx-4090+cpu`), which serve as one replica; empty for others.

    Raises UserError.
    """
    if not isinstance(hardware, str) or len(listed(hardware)) < 2 or counted(hardware)[0]:
        return ()
    several, rest, _ = devices.stated(hardware, {})
    return (build.chip_of(rest),) if several is None else several.chips


def sum_as_named(hardware: str) -> str:
    """A sum of devices with the names of their files: 4090+2x3090 -> rtx-4090+2xrtx-3090."""
    parts = ((part, *counted(part)) for part in listed(hardware))
    return "+".join(
        part if is_host(part) else f"{count}x" * (count > 1) + build.chip_of(name).name for part, count, name in parts
    )


def structures(
    model: Any, hardware: str, allowed: Mapping[str, Sequence[Any]], most_devices: int
) -> Iterator[Structure | Refusal]:
    """The structures of one chip, fewest devices first; those that the model or engine does not support as refusals.

    model: as of `analyze`.  allowed: values of options that the user lists; others of SEARCHED are tried by rules.
    Unlike devices have one layout, whose shares the engine finds.  Raises UserError for an unknown model or chip.
    """
    together = sum_of(hardware)
    chip = together[0] if together else build.chip_of(hardware)
    loaded = build.model_of(model, build.options_of(_of_the_model(allowed)))
    if loaded.is_encoder:
        raise UserError(
            f"size serves decoders, and {loaded.name} is an encoder; llmviewer simulate --find-rate has its rate"
        )
    fixed = {name: values for name, values in allowed.items() if name not in SEARCHED}
    served = "" if together else of_a_server(chip)
    usual = NO_ENGINE if allowed.get("efficiency") == ("ideal",) else served or AT_A_DESK
    alone = together and not any(name in allowed for name in LAYOUT)
    for layout in ({},) if alone else _layouts(loaded, chip, allowed, most_devices):
        for engine in allowed.get("engine", (usual,)):
            own = load(arguments.word("engine", engine)).number_formats
            lists = {
                **fixed,
                "engine": (engine,),
                "quantization": allowed.get("quantization") or _formats(loaded, chip, own.get("quantization", ())),
                "kv_cache_dtype": allowed.get("kv_cache_dtype") or _cache_formats(chip, own.get("kv_cache_dtype", ())),
            }
            for values in product(*lists.values()):
                words = dict(zip(lists, values, strict=True)) | layout
                yield _structure(loaded, None if together else chip, hardware, words, served)


def _of_the_model(allowed: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Words that choose how a config is read."""
    return {name: allowed[name][0] for name in MODEL_OPTIONS if name in allowed}


def _structure(model: Model, chip: Chip | None, hardware: str, words: Words, served: str) -> Structure | Refusal:
    """A structure of a chip, or of unlike devices without one.  served: the usual engine of the chip."""
    defaults = DEFAULTS if served == ENGINE else {**DEFAULTS, "engine": ""}
    options = {name: value for name, value in words.items() if str(value) != str(defaults.get(name, ""))}
    try:
        made = on_devices(model, chip or hardware, **{"engine": ENGINE, "batching": BATCHING, **options})
    except UserError as error:
        return Refusal(hardware=hardware, options=options, reason=error.marked)
    return Structure(hardware=hardware, options=options, configuration=made)


def _formats(model: Model, chip: Chip, own: Sequence[str]) -> tuple[str, ...]:
    """The checkpoint's format, the widest format of 8 bits that the chip computes natively, and one of 4 bits.

    own: formats of an engine that has others, the widest first.
    """
    if model.checkpoint is not as_built:
        return ("none",)
    if own:
        return ("none", own[0], own[-1])
    native = [name for name, needed in FORMATS.items() if needed in chip.matrix_flops_per_s]
    small = [
        name for name, one in FOUR_BITS.items() if one.maker == chip.maker and one.needed in chip.matrix_flops_per_s
    ]
    return ("none", *native[:1], *small[:1])


def few_bits_notes(formats: Iterable[str]) -> list[str]:
    """A warning for each of these formats whose weights have few bits, with the chips that have kernels for it."""
    found = []
    for name in dict.fromkeys(formats):
        if has_few_bits(name):
            one = FOUR_BITS.get(name)
            kernels = f"kernels for it: {one.chips} ({one.source})" if one else "see that the engine has kernels for it"
            found.append(f"{name}: weights of about 4 bits; the quality of answers is not judged; {kernels}")
    return found


def has_few_bits(quantization: str) -> bool:
    """Whether a format stores weights of about four bits or less, whose answers are not judged here."""
    weights = parse_scheme(quantization).weights
    return weights is not None and weights.bits < FEW_BITS


def _cache_formats(chip: Chip, own: Sequence[str]) -> tuple[str, ...]:
    if own:
        return ("auto", *own)
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
    across = "network" in allowed
    for degree in (*DEGREES, *(ACROSS_NODES if across else ())):
        if degree > (most_devices if across else min(chip.near, most_devices)):
            return
        sizes = [(degree, 1, 1)]
        if routed and degree > 1:
            sizes += [(degree, 1, degree), (1, degree, degree)]
        yield from (dict(zip(LAYOUT, map(str, one), strict=True)) for one in sizes)
