"""Devices of a sum, `rtx-4090+rtx-3090`, and the system whose layers they share, as llama.cpp divides them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from llmviewer.analysis.engine_parts import capacity_bytes
from llmviewer.analysis.pipeline import of_fullest
from llmviewer.analysis.system import Parallelism, Split, System
from llmviewer.core.arguments import parse_number
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.hardware import specs
from llmviewer.hardware.chip import NETWORK, Chip
from llmviewer.hardware.names import HOST_WORDS, counted, is_host, listed
from llmviewer.models.model import Model
from llmviewer.techniques import llama_cpp
from llmviewer.techniques.options import RUN, Options
from llmviewer.techniques.parallel.sizes import MAX_DEVICES
from llmviewer.techniques.registry import TECHNIQUES
from llmviewer.timing import engine

#: Where devices of a split are answered.
ANSWERED = (
    "devices with shares of their own are answered by analyze, compare, fit, simulate and size; here name one kind of "
    "chip"
)
#: Option that says how many devices divide the layers.
PIPELINE = "pipeline_parallel_size"
#: Techniques that hold for each device by itself; no other is modelled on devices of a split.
OF_EACH = (
    *("expert_skew", "lora", "low_rank", "quantization", "kv_cache_dtype", "matformer", "prune", "kv_block_size"),
    *("kv_reserve", "prefix_cache", "kv_evict", "attention", "link", "network", "fusion", "offload", "batching"),
)
#: Options that state what the host computes.
PLACING = ("gpu_layers", "n_cpu_moe", "override_tensor")


@frozen
class Devices:
    """Chips in the order in which they hold the layers, and the part of a sum that each is of."""

    chips: tuple[Chip, ...]
    parts: tuple[int, ...]

    def __str__(self) -> str:
        return "+".join(one.name for one in self.chips)


def stated(hardware: object, options: Mapping[str, Any]) -> tuple[Devices | None, object, dict[str, Any]]:
    """The devices of a sum, what is named without them, and the options.  None where one kind of chip is named.

    A host in the sum, `rtx-4090+cpu` or +desktop-ddr5-6000, computes the layers that do not fit: `-ngl auto` unless the
    options place them.
    Chips that are alike are machines of their own only where the options state their network.  Raises UserError.
    """
    parts = listed(hardware) if isinstance(hardware, str) else ()
    if len(parts) < 2:
        return None, hardware, dict(options)
    hosts, chips = [one for one in parts if is_host(one)], [one for one in parts if not is_host(one)]
    chosen = {**_hosted(hosts, options), **options} if hosts else dict(options)
    if not chips:
        raise UserError(f"--hardware is {quoted(hardware)}; allowed: a chip beside the host, as in rtx-4090+cpu")
    rest = "+".join(chips)
    if len(chips) == 1 or (counted(rest)[0] and options.get("network") in (None, TECHNIQUES["network"].default)):
        return None, rest if hosts else hardware, chosen
    pairs = [(max(count, 1), specs.load(name)) for count, name in map(counted, chips)]
    return (
        Devices(
            chips=tuple(chip for count, chip in pairs for _ in range(count)),
            parts=tuple(at for at, (count, _) in enumerate(pairs) for _ in range(count)),
        ),
        rest,
        chosen,
    )


def _hosted(hosts: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a host in a sum stands for."""
    named = [one for one in hosts if one.lower() not in HOST_WORDS]
    if len(hosts) > 1:
        raise UserError(f"--hardware: {' and '.join(hosts)} are two hosts; the devices of a sum have one")
    placed = any(options.get(name) is not None for name in PLACING)
    return ({} if placed else {"gpu_layers": "auto"}) | ({"offload": f"host={named[0]}"} if named else {})


def check_engine(hardware: object, options: Mapping[str, Any]) -> None:
    """Raise UserError for an engine that does not give each device layers of its own."""
    chosen = options.get("engine")
    if isinstance(chosen, str) and chosen != RUN["engine"].default and engine.load(chosen).divides != "layers":
        raise UserError(
            f"--engine {chosen} divides no model among unlike devices ({hardware}); --engine llama.cpp does, and "
            "ollama, lm-studio, koboldcpp"
        )


def alike(model: Model, chip: Chip, options: Options) -> Devices | None:
    """Several devices of one kind whose layers are not divided evenly: by -ts, or beside layers on the host.

    None for all others.  Raises UserError.
    """
    shares = llama_cpp.shares_of(options)
    stages = parse_number(options.techniques.get(PIPELINE, "1"))
    count = len(shares) or (stages if isinstance(stages, int) and 1 < stages <= MAX_DEVICES else 1)
    uneven = len(set(shares)) > 1
    if count < 2 or options.split_mode not in ("", "layer") or not (uneven or llama_cpp.placement(options, model)):
        return None
    return Devices(chips=(chip,) * count, parts=(0,) * count)


def used(devices: Devices, options: Options) -> tuple[Devices, Options]:
    """The devices that have a share, and the options without what says how many there are.  Raises UserError."""
    count, shares = len(devices.chips), llama_cpp.shares_of(options, every=True)
    if shares and len(shares) != count:
        raise UserError(f"--tensor-split has {len(shares)} shares for {count} devices ({devices}); state one for each")
    if options.split_mode == "tensor":
        raise UserError(
            f"--split-mode tensor needs devices that are alike; {devices} take layer, or none for the first"
        )
    techniques = dict(options.techniques)
    stages = techniques.pop(PIPELINE, str(count))
    if stages not in ("1", str(count)):
        raise UserError(f"--pipeline-parallel-size is {stages}, and {devices} are {count} devices; state one of them")
    for name, text in techniques.items():
        if (name not in OF_EACH or text.startswith("disaggregated")) and text != TECHNIQUES[name].default:
            raise UserError(f"--{name.replace('_', '-')} is not modelled on devices with unlike shares ({devices})")
    if techniques.get("offload", "none").partition(",")[0].partition("=")[0] not in ("none", "host", "llama.cpp"):
        raise UserError("--offload: of several devices only llama.cpp's placement is modelled: -ngl, --n-cpu-moe, -ot")
    kept = [at for at in range(count) if not shares or shares[at]]
    if options.split_mode == "none":  # https://github.com/ggml-org/llama.cpp/blob/master/include/llama.h, main_gpu
        if options.main_gpu >= count:
            raise UserError(f"--main-gpu is {options.main_gpu}; allowed: 0 to {count - 1} of {devices}")
        kept = [options.main_gpu] if options.main_gpu else kept[:1]
        options = replace(options, split_mode="", main_gpu=0)
    left = Devices(chips=tuple(devices.chips[at] for at in kept), parts=tuple(devices.parts[at] for at in kept))
    return left, replace(options, techniques=techniques)


def split_system(model: Model, devices: Devices, options: Options, build: Callable[[Chip, Options], System]) -> System:
    """The system of several devices that each hold a share of the layers, by -ts or by their free memory.

    build: the system of one chip and options.  Raises UserError.
    """
    count, options = len(devices.chips), _on_one_host(devices.chips[0], options)
    known = {chip.name: build(chip, options) for chip in devices.chips}
    systems = {name: replace(one, parallelism=Parallelism(pipeline=count)) for name, one in known.items()}
    stages = tuple(systems[chip.name] for chip in devices.chips)
    shares = llama_cpp.shares_of(options) or tuple(map(_free_bytes, stages))
    policy = stages[0].policy
    split = Split(stages=stages, shares=shares, machines=_machines(devices, stages, options))
    return replace(of_fullest(split, model), policy=policy)


def _on_one_host(chip: Chip, options: Options) -> Options:
    """The options with the host of the first device, where they put layers on a host and state none."""
    text = options.techniques.get("offload", "none")
    if not text.startswith("llama.cpp") or ",host=" in text:
        return options
    return replace(options, techniques={**options.techniques, "offload": f"{text},host={chip.usual_host}"})


def _free_bytes(system: System) -> float:
    """Free memory of a device before the model is loaded, without the context of CUDA."""
    free = system.engine.free_memory
    context = free.context_bytes(system.chip) if free is not None else 0.0
    return float(np.max(capacity_bytes(system))) - context


def _machines(devices: Devices, stages: tuple[System, ...], options: Options) -> tuple[int, ...]:
    """The machine of each device: with a network, one for each part of the sum and each chip that has one of its own.

    Raises UserError for a chip without a link to the others.
    """
    chips = [one.chip for one in stages]
    networked = all(NETWORK in chip.links for chip in chips)
    lone = next((one for one in chips if one.link_rate is None or one.near < len(chips)), None)
    if not networked and lone is not None:
        raise UserError(
            f"--hardware {devices}: {lone.name} has no link to the others in one machine; a CPU beside its cards is "
            f"written +cpu, and machines need --network {', '.join(specs.network_names())}"
        )
    if not networked:
        return (0,) * len(chips)
    machines = [0]
    for at in range(1, len(chips)):
        new = devices.parts[at] != devices.parts[at - 1] or chips[at].default_link == NETWORK
        machines.append(machines[-1] + new)
    return tuple(machines)
