"""`--offload`: weights, cache or hidden states on the host or its disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, unknown
from llmviewer.hardware.chip import Host
from llmviewer.hardware.figures import Figure
from llmviewer.hardware.specs import disk, host
from llmviewer.techniques.offload.flash import Flash
from llmviewer.techniques.offload.places import OffloadShares
from llmviewer.techniques.offload.plan import TENSORS, WHERE, Offload, Overlap, with_offload, with_host
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_parameters

#: A server whose CPU states its rates, and a fast disk.
DEFAULT_HOST = "xeon-8480-ddr5"
DEFAULT_DISK = "samsung-pm1743"
#: Words that choose -> what they allow, the default first.
CHOICES: dict[str, tuple[str, ...]] = {
    "compute": ("device", "host"),
    "overlap": tuple(way.value for way in Overlap),
    "to": ("host", "disk"),
}
#: First words -> what they say unless the rest of the text says otherwise.
PRESETS: dict[str, dict[str, str]] = {
    "zero-inference": {"weights": "1"},
    "experts": {"weights": "1", "compute": "host"},
    "flash": {"to": "disk", "overlap": "off"},
    "flexgen": {"to": "disk"},
}
SHARES = tuple(Parameter(name=name, default=0.0, low=0.0, high=1.0) for name in TENSORS)
NEURONS = {
    name: Parameter(name=name, default=share, low=0.0, high=1.0) for name, share in (("kept", 0.24), ("fresh", 0.024))
}


def _make(text: str) -> Change:
    given = _words(text)
    preset = given.pop("preset", "")
    beside, figures = _beside(given)
    if preset == "flexgen":
        from llmviewer.techniques.offload.flexgen import flexgen  # it alone solves a linear program

        return flexgen(beside, figures)
    plan = _plan(preset, given)
    if plan.is_empty:
        return lambda system: system

    def change(system: System) -> System:
        if plan.flash and not any(a.name.startswith("contextual_sparsity") for a in system.passes):
            raise UserError(f"{WHERE} flash reads the neurons that a token uses: say so, --contextual-sparsity mlp=0.1")
        return with_offload(with_host(system, beside, figures), plan)

    return change


def _words(text: str) -> dict[str, str]:
    """The text as words by name, those of its preset filled in."""
    first, _, rest = text.partition(",")
    preset = first.strip() if "=" not in first else ""
    if "=" not in first and preset not in PRESETS:
        raise unknown(f"word of {WHERE}", preset, (*PRESETS, *(f"{name}=..." for name in TENSORS)))
    known = (*TENSORS, *CHOICES, "host", "disk") if preset != "flexgen" else ("host", "disk")
    known = ("host", "disk", *NEURONS) if preset == "flash" else known
    own = parse_parameters(WHERE, rest if preset else text, known)
    for name, allowed in CHOICES.items():
        if name in own and own[name] not in allowed:
            raise unknown(f"{WHERE} {name}", own[name], allowed)
    return {**PRESETS.get(preset, {}), **own, "preset": preset}


def _plan(preset: str, given: Mapping[str, str]) -> Offload:
    if preset == "flash":
        return Offload(
            flash=Flash(**{name: of.value(given, WHERE) for name, of in NEURONS.items()}), overlap=Overlap.NOTHING
        )
    to, on_host = given.get("to", "host"), given.get("compute") == "host"
    if on_host and to == "disk":
        raise UserError(f"{WHERE}: the host computes with what is in its memory; to=disk goes with compute=device")
    if on_host and given.get("overlap"):
        raise UserError(f"{WHERE}: the device waits for what the host computes; overlap goes with compute=device")
    weights, kv, activations = (OffloadShares(**{to: parameter.value(given, WHERE)}) for parameter in SHARES)
    return Offload(
        weights=weights,
        kv=kv,
        activations=activations,
        experts=preset == "experts",
        on_host=on_host,
        overlap=Overlap(given.get("overlap", Overlap.SHARE.value)),
    )


def _beside(given: Mapping[str, str]) -> tuple[Host, dict[str, Figure]]:
    """The host, and its disk where one is needed, with their figures."""
    found, figure = host(given.get("host", DEFAULT_HOST))
    figures = {"host.bandwidth_bytes_per_s": figure}
    if given.get("to") == "disk" or "disk" in given:
        its, rates = disk(given.get("disk", DEFAULT_DISK))
        found, figures = replace(found, disk=its), figures | rates
    return found, figures


TECHNIQUE = Technique(
    name="offload",
    kind="offloading",
    summary="Keeps weights, cache or hidden states on the host or its disk: streamed while the layer before "
    "computes, or computed on by the host.",
    parameters={
        "weights": "share of every layer's weights that lies elsewhere",
        "kv": "share of the KV cache that does",
        "activations": "share of the hidden states that does",
        "compute": "device (what it needs is streamed), or host: it computes with what it holds",
        "overlap": "on: a share of every layer comes while the one before computes; layer: whole layers "
        "do; off: a layer waits",
        "to": "host, or disk",
        "host": f"name of a host; {DEFAULT_HOST} unless said",
        "disk": f"name of a disk; {DEFAULT_DISK} unless said",
        "zero-inference": "all weights streamed (ZeRO-Inference)",
        "experts": "routed experts on the host, which computes them (KTransformers)",
        "flexgen": "what lies where as a linear program finds it for the request (FlexGen)",
        "flash": "feed-forward weights on the disk, kept=0.24 of the neurons in memory, fresh=0.024 read "
        "for a token (LLM in a flash)",
    },
    formula="a layer takes max(kernels, bytes in / link, bytes out / link, bytes / host memory, bytes / disk), their "
    "sum with overlap=off; on the host max(bytes / memory bandwidth, FLOP / CPU rate) in series; memory keeps the rest "
    "and two buffers of a layer's stream",
    source="FlexGen arXiv 2303.06865; ZeRO-Inference arXiv 2207.00032; llama.cpp --n-gpu-layers; KTransformers "
    "https://github.com/kvcache-ai/ktransformers; LLM in a flash arXiv 2312.11514",
    example="llmviewer analyze llama-3.1-70b --hardware rtx-4090 --offload weights=1,to=disk "
    "--speculative draft=llama-3.2-1b,tokens=4,acceptance=0.8",
    make=_make,
)
