"""`--offload`: weights, KV cache or hidden states on the host or its disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, unknown
from llmviewer.hardware.chip import DEFAULT_HOST, Chip, Figure, Host
from llmviewer.hardware.specs import DEFAULT_DISK, disk, host
from llmviewer.language.grammar import Choice, Form, Grammar, Number
from llmviewer.techniques.offload.flash import Flash
from llmviewer.techniques.offload.places import OffloadShares
from llmviewer.techniques.offload.plan import TENSORS, WHERE, HostWork, Offload, Overlap, with_host, with_offload
from llmviewer.techniques.technique import Change, Technique, Whole, refusing, unchanged
from llmviewer.timing.calibrated import has_amx


def without_amx(host: Host) -> Chip:
    """The CPU of a host without its matrix units: products take the rate of its vector units in fp32.

    Raises UserError where the CPU is unknown or has no matrix units.  Source: KTransformers 0.2 computes experts
    without AMX, 0.3 with it: https://github.com/kvcache-ai/ktransformers, doc/en/DeepseekR1_V3_tutorial.md
    """
    cpu = host.cpu
    if cpu is None or not has_amx(cpu):
        why = "its CPU rates are unknown" if cpu is None else "its rates are those of vector instructions already"
        raise UserError(f"--offload instructions: avx512 needs a host with AMX; {host.name} has none: {why}")
    figures = {**cpu.figures, "matrix_flops_per_s.fp32": cpu.figures["vector_flops_per_s.fp32"]}
    return replace(cpu, matrix_flops_per_s={"fp32": cpu.vector_flops_per_s["fp32"]}, figures=figures)


#: Parameters with their forms, without their defaults, which depend on the preset.
FORMS: dict[str, Form] = {
    "weights": Number(
        "share of every layer's weights that is offloaded; 0.5+0.2: half to the host, a fifth to its disk", 0.0, 1.0
    ),
    "kv": Number("share of the KV cache that is offloaded, likewise", 0.0, 1.0),
    "activations": Number("share of the hidden states that is offloaded, likewise", 0.0, 1.0),
    "compute": Choice(
        "device: offloaded tensors are copied to the device; host: the host computes with them; "
        "attention: the host attends over its part of the cache, also from its disk, the rest is copied",
        ("device", "host", "attention"),
    ),
    "overlap": Choice(
        "on: a share of every layer is copied while the previous layer computes; layer: whole layers "
        "are; off: a layer waits for its copies",
        tuple(way.value for way in Overlap),
    ),
    "gpu_batches": Whole(
        "parts of the batch that go through each layer in turn; weights are copied once for all, and "
        "activations are those of one part",
        1,
        65536,
    ),
    "copies": Number(
        "times that the host copies keys and values in fp32, for every query head, before it attends: 1 for "
        "Llama in Transformers (repeat_kv), 2 for FlexGen",
        0,
        16,
        unset="0",
    ),
    "to": Choice("host or disk", ("host", "disk")),
    "pinned": Choice("on: copies read page-locked memory; off: pageable memory, at 0.48 of that rate", ("on", "off")),
    "instructions": Choice(
        "amx: a CPU with matrix units (Intel AMX) computes with them, at the 29 % of their rate that "
        "kernels for experts reach, half of it with few rows of each; "
        "avx512: with its vector units, in fp32, as KTransformers before 0.3",
        ("amx", "avx512"),
    ),
    "sockets": Choice(
        "1 or 2: CPUs of the host, each with its own copy of the tensors: twice the rates (1.57 times "
        "if calibrated), the capacity of one",
        ("1", "2"),
    ),
    "host": Form(
        help="name of a host", unset=f"that of the chip's file (gaming cards: a desktop), else {DEFAULT_HOST}"
    ),
    "disk": Form(help="name of a disk", unset=DEFAULT_DISK),
}
#: Neurons of `flash`: kept in memory, and read per token.
NEURONS: dict[str, Form] = {
    "kept": Number("share of the neurons in memory", 0.0, 1.0),
    "fresh": Number("share of the neurons read per token", 0.0, 1.0),
}
USUAL_NEURONS = {"kept": "0.24", "fresh": "0.024"}
#: Parameters of the host, which every preset takes.
OF_HOST = ("host", "disk", "instructions", "sockets")
#: Parameters of llama.cpp's placement, and what it takes beside them.
LLAMA_CPP: dict[str, Form] = {
    "cpu_layers": Whole(
        "first layers that the host stores and computes; all: the head too; auto: as few as memory demands, of a "
        "mixture of experts first the experts of layers",
        high=9999,
        words=("all", "auto"),
        unset="0",
    ),
    "cpu_experts": Form(help="numbers of layers whose experts the host stores and computes: 0-9/20", unset="none"),
}
LLAMA_CPP_HOST = (*OF_HOST[:1], *OF_HOST[2:], "pinned")
#: Presets, named by the first word -> their parameters, which the rest of the text overrides.
PRESETS: dict[str, dict[str, str]] = {
    "zero-inference": {"weights": "1"},
    "experts": {"weights": "1", "compute": "host"},
    "flash": {"to": "disk", "overlap": "off"},
    "flexgen": {"to": "disk", "compute": "attention"},
    "llama.cpp": {"compute": "host"},
}


def _make(text: str) -> Change:
    given = _parse(text)
    preset = given.pop("preset", "")
    _host(given, DEFAULT_HOST)  # unknown names fail here
    if preset == "flexgen":
        return _flexgen(given)
    if preset == "llama.cpp":
        return _llama_cpp(given)
    pinned = given.get("pinned") != "off"
    plan = _plan(preset, given)
    if plan.is_empty:
        return unchanged

    def change(system: System) -> System:
        if plan.flash and not system.applies("contextual_sparsity"):
            raise UserError(
                f"{WHERE} flash needs the share of neurons that a token uses: add --contextual-sparsity mlp=0.1"
            )
        return with_offload(with_host(system, *_host_of(system, given), pinned=pinned, experts=plan.experts), plan)

    return change


def _flexgen(given: Mapping[str, str]) -> Change:
    from llmviewer.techniques.offload.flexgen import flexgen  # needs a solver of linear programs

    batches = int(_number("gpu_batches", given)) if "gpu_batches" in given else None
    return lambda system: flexgen(*_host_of(system, given), HostWork(given["compute"]), batches)(system)


def _llama_cpp(given: Mapping[str, str]) -> Change:
    from llmviewer.techniques.offload.llama_cpp import Placement, layers_of  # other presets do not need it

    with refusing(WHERE):
        layers = LLAMA_CPP["cpu_layers"].read("cpu_layers", given.get("cpu_layers", "0"))
    placement = Placement(layers=layers, experts=frozenset(layers_of(given.get("cpu_experts", ""))))
    if placement.is_empty:
        return unchanged
    return lambda system: placement.change(
        with_host(system, *_host_of(system, given), pinned=given.get("pinned") != "off")
    )


def _parse(text: str) -> dict[str, str]:
    """Parameters by name, including those of the preset, which is listed as `preset`."""
    first, _, rest = text.partition(",")
    preset = first.strip() if "=" not in first else ""
    if "=" not in first and preset not in PRESETS:
        raise unknown(f"word of {WHERE}", preset, (*PRESETS, *(f"{name}=..." for name in TENSORS)))
    known = (*OF_HOST, "compute", "gpu_batches") if preset == "flexgen" else tuple(FORMS)
    known = (*OF_HOST[:2], *NEURONS) if preset == "flash" else known
    known = (*LLAMA_CPP_HOST, *LLAMA_CPP) if preset == "llama.cpp" else known
    forms = {name: form for name, form in {**FORMS, **NEURONS, **LLAMA_CPP}.items() if name in known}
    with refusing(WHERE):
        own = Grammar.named(forms).words(rest if preset else text)
        for name, word in own.items():
            if isinstance(forms[name], Choice):
                forms[name].read(name, word)
    usual = PRESETS.get(preset, {})
    if own.get("to") == "disk" and preset == "experts":
        usual = {**usual, "compute": "device"}  # the host does not compute with experts on its disk
    return {**usual, **own, "preset": preset}


def _plan(preset: str, given: Mapping[str, str]) -> Offload:
    if preset == "flash":
        return Offload(
            flash=Flash(**{name: _number(name, {**USUAL_NEURONS, **given}) for name in NEURONS}),
            overlap=Overlap.NOTHING,
        )
    on_host = given.get("compute") == "host"
    weights, kv, activations = (_shares(name, given) for name in TENSORS)
    if on_host and (given.get("to") == "disk" or weights.disk or kv.disk):
        raise UserError(f"{WHERE}: the host computes only with tensors in its memory; to=disk requires compute=device")
    if on_host and given.get("overlap"):
        raise UserError(f"{WHERE}: the device waits for the host to compute; overlap requires compute=device")
    copies = _number("copies", given)
    if copies and not (kv.share and given.get("compute") in ("attention", "host")):
        raise UserError(f"{WHERE}: the host copies keys and values that it attends to; copies requires kv and compute")
    return Offload(
        weights=weights,
        kv=kv,
        activations=activations,
        experts=preset == "experts",
        on_host=on_host,
        delegates=given.get("compute") == "attention",
        overlap=Overlap(given.get("overlap", Overlap.SHARE.value)),
        gpu_batches=int(_number("gpu_batches", given, "1")),
        copies=copies,
    )


def _number(name: str, given: Mapping[str, str], default: str = "0") -> float:
    """The number that is given for a parameter, or its default."""
    with refusing(WHERE):
        number: float = {**FORMS, **NEURONS}[name].read(name, given.get(name, default))
    return number


def _shares(name: str, given: Mapping[str, str]) -> OffloadShares:
    """The shares of one kind of tensor: at the place of `to`, or as HOST+DISK."""
    host, plus, disk = given.get(name, "0").partition("+")
    if not plus:
        return OffloadShares(**{given.get("to", "host"): _number(name, {name: host})})
    found = OffloadShares(host=_number(name, {name: host}), disk=_number(name, {name: disk}))
    if found.share > 1.0 + 1e-9:
        raise UserError(f"{WHERE}: {name}={host}+{disk} is more than the whole; allowed: a sum of at most 1")
    return found


def _host_of(system: System, given: Mapping[str, str]) -> tuple[Host, dict[str, Figure]]:
    """The host that is given, or that in which the system's chip usually stands: a gaming card, a desktop."""
    return _host(given, system.chip.usual_host)


def _host(given: Mapping[str, str], default: str) -> tuple[Host, dict[str, Figure]]:
    """The host, with its disk if one is used, and their data-sheet figures."""
    found, figure = host(given.get("host", default))
    found = replace(found, sockets=int(given.get("sockets", "1")))
    if given.get("instructions") == "avx512":
        found = replace(found, cpu=without_amx(found))
    figures = {"host.bandwidth_bytes_per_s": figure}
    if given.get("to") == "disk" or "disk" in given or any("+" in given.get(name, "") for name in TENSORS):
        attached, rates = disk(given.get("disk", DEFAULT_DISK))
        found, figures = replace(found, disk=attached), figures | rates
    return found, figures


TECHNIQUE = Technique(
    name="offload",
    kind="offloading",
    summary="Stores weights, KV cache or hidden states on the host or its disk; they are copied to the device while "
    "the previous layer computes, or the host computes with them.",
    parameters={
        **Grammar.named(FORMS).help(),
        "zero-inference": "all weights are offloaded and copied (ZeRO-Inference)",
        "experts": "the host stores the routed experts and computes with them (KTransformers); with to=disk the "
        "experts that tokens select are read from its disk (EdgeMoE)",
        "flexgen": "the fastest shares for the request, whether the host attends, and the number of GPU batches, by "
        "linear programs (FlexGen); compute=host: the host may compute layers and experts too, compute=device: nothing",
        "llama.cpp": "cpu_layers=12, all or auto, and cpu_experts=0-9: layers, or experts of layers, that the host "
        "stores and computes, but passes of 32 tokens and more run on the device with copies of them (-ngl, "
        "--n-cpu-moe, -ot)",
        "flash": "feed-forward weights on the disk, kept=0.24 of the neurons in memory, fresh=0.024 read "
        "per token (LLM in a flash)",
    },
    formula="a layer takes max(kernels, bytes in / link, bytes out / link, bytes / host memory, bytes / disk), their "
    "sum with overlap=off; on the host max(bytes / memory bandwidth, FLOP / CPU rate) in series; memory keeps the rest "
    "and two buffers of a layer's stream",
    source="FlexGen arXiv 2303.06865; ZeRO-Inference arXiv 2207.00032; llama.cpp --n-gpu-layers; KTransformers "
    "https://github.com/kvcache-ai/ktransformers; EdgeMoE arXiv 2308.14352; LLM in a flash arXiv 2312.11514",
    example="llmviewer analyze llama-3.1-70b --hardware rtx-4090 --offload weights=1,to=disk "
    "--speculative draft=llama-3.2-1b,tokens=4,acceptance=0.8",
    make=_make,
)
