"""`--offload`: weights, cache or hidden states on the host or its disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llmviewer.chip import Chip, Figure, Host
from llmviewer.errors import UserError, unknown
from llmviewer.hardware import disk, host
from llmviewer.ir import Graph, Pass
from llmviewer.ops.transfer import Direction, TransferShape
from llmviewer.passes.offload_flash import Flash, from_flash
from llmviewer.passes.offload_host import attention_on_host, experts_on_host, is_routed, layers_on_host
from llmviewer.passes.offload_stream import STAYS, Away, Streams, every, stream
from llmviewer.system import Applied, System
from llmviewer.technique import Change, Parameter, Technique, named

WHERE = "--offload"
#: A server whose CPU states its rates, and a fast disk.
HOST = "xeon-8480-ddr5"
DISK = "samsung-pm1743"
#: What may lie elsewhere.
TENSORS = ("weights", "kv", "activations")
#: Words that choose -> what they allow, the default first.
CHOICES: dict[str, tuple[str, ...]] = {
    "compute": ("device", "host"),
    "overlap": ("on", "off", "layer"),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What lies elsewhere, and who computes with it.

    experts: of the weights only the routed experts' go.  on_host: the host computes with what it holds; else it is
    brought to the device.  overlap: `on`, a share of every layer comes while the one before computes; `layer`, whole
    layers do; `off`, a layer waits for what it needs.  head: it goes where all layers go.  flash: the disk holds the
    feed-forward weights instead.
    """

    weights: Away = STAYS
    kv: Away = STAYS
    activations: Away = STAYS
    experts: bool = False
    on_host: bool = False
    overlap: str = "on"
    head: bool = True
    flash: Flash | None = None

    @property
    def nothing(self) -> bool:
        """Whether all stays on the device."""
        return self.flash is None and not any(a.share for a in (self.weights, self.kv, self.activations))

    @property
    def needs_host(self) -> bool:
        """Whether the memory of the host is used."""
        return any(a.host for a in (self.weights, self.kv, self.activations))

    def __str__(self) -> str:
        if self.flash is not None:
            return f"flash: kept={self.flash.kept:g}, fresh={self.flash.fresh:g}"
        away = ((name, getattr(self, name)) for name in TENSORS)
        said = [f"{'experts' if self.experts and name == 'weights' else name} {of}" for name, of in away if of.share]
        how = ["compute=host"] if self.on_host else []
        how += [f"overlap={self.overlap}"] if self.overlap != "on" else []
        return ", ".join((*said, *how)) or "all on the device"

    def make(self, chip: Chip) -> Pass:
        """The pass on a chip."""
        if self.flash is not None:
            return from_flash(self.flash, TransferShape(direction=Direction.IN, crosses=_crosses(chip)))
        steps = [*self._computed(), *self._streamed(chip)]

        def change(graph: Graph) -> Graph:
            for step in steps:
                graph = step(graph)
            return graph

        return change

    def _computed(self) -> list[Pass]:
        """What the host does."""
        if not self.on_host:
            return []
        share = self.weights.share
        passes = [(experts_on_host if self.experts else layers_on_host)(share)] if share else []
        return [*passes, attention_on_host(self.kv)] if self.kv.share else passes

    def _streamed(self, chip: Chip) -> list[Pass]:
        """What comes to the device."""
        streams = Streams(
            weights=STAYS if self.on_host else self.weights,
            kv=STAYS if self.on_host else self.kv,
            activations=self.activations,
            buffers=1.0 if self.overlap == "off" else 2.0,
            crosses=_crosses(chip),
            of=is_routed if self.experts else every,
            whole_layers=self.overlap == "layer",
            head=self.head,
        )
        idle = not any(away.share for away in (streams.weights, streams.kv, streams.activations))
        return [] if idle else [stream(streams)]


def _crosses(chip: Chip) -> bool:
    """Whether a link lies between the device and its host."""
    return chip.host_link_rate is not None


def _make(text: str) -> Change:
    given = _words(text)
    preset = given.pop("preset", "")
    beside, figures = _beside(given)
    if preset == "flexgen":
        from llmviewer.passes.offload_flexgen import flexgen  # it alone solves a linear program

        return flexgen(beside, figures)
    plan = _plan(preset, given)
    if plan.nothing:
        return lambda system: system

    def change(system: System) -> System:
        if plan.flash and not any(a.name.startswith("contextual_sparsity") for a in system.passes):
            raise UserError(f"{WHERE} flash reads the neurons that a token uses: say so, --contextual-sparsity mlp=0.1")
        return placed(with_host(system, beside, figures), plan)

    return change


def _words(text: str) -> dict[str, str]:
    """The text as words by name, those of its preset filled in."""
    first, _, rest = text.partition(",")
    preset = first.strip() if "=" not in first else ""
    if preset and preset not in PRESETS:
        raise unknown(f"word of {WHERE}", preset, (*PRESETS, *(f"{name}=..." for name in TENSORS)))
    known = (*TENSORS, *CHOICES, "host", "disk") if preset != "flexgen" else ("host", "disk")
    known = ("host", "disk", *NEURONS) if preset == "flash" else known
    own = named(WHERE, rest if preset else text, known) if rest or not preset else {}
    for name, allowed in CHOICES.items():
        if name in own and own[name] not in allowed:
            raise unknown(f"{WHERE} {name}", own[name], allowed)
    return {**PRESETS.get(preset, {}), **own, "preset": preset}


def _plan(preset: str, given: Mapping[str, str]) -> Offload:
    if preset == "flash":
        return Offload(flash=Flash(**{name: of.of(given, WHERE) for name, of in NEURONS.items()}), overlap="off")
    to, on_host = given.get("to", "host"), given.get("compute") == "host"
    if on_host and to == "disk":
        raise UserError(f"{WHERE}: the host computes with what is in its memory; to=disk goes with compute=device")
    if on_host and given.get("overlap"):
        raise UserError(f"{WHERE}: the device waits for what the host computes; overlap goes with compute=device")
    weights, kv, activations = (Away(**{to: parameter.of(given, WHERE)}) for parameter in SHARES)
    return Offload(
        weights=weights,
        kv=kv,
        activations=activations,
        experts=preset == "experts",
        on_host=on_host,
        overlap=given.get("overlap", "on"),
    )


def _beside(given: Mapping[str, str]) -> tuple[Host, dict[str, Figure]]:
    """The host, and its disk where one is needed, with their figures."""
    found, figure = host(given.get("host", HOST))
    figures = {"host.bandwidth_bytes_per_s": figure}
    if given.get("to") == "disk" or "disk" in given:
        its, rates = disk(given.get("disk", DISK))
        found, figures = replace(found, disk=its), figures | rates
    return found, figures


def with_host(system: System, beside: Host, figures: Mapping[str, Figure]) -> System:
    """The system with a host, which all devices share."""
    chip = system.chip
    if chip.host is not None:
        raise UserError(f"{WHERE}: --hot-neurons already says what is on the host; leave out one")
    shared = replace(beside, devices=system.parallelism.devices)
    return replace(system, chip=replace(chip, host=shared, figures={**chip.figures, **figures}))


def placed(system: System, plan: Offload, said: str = "") -> System:
    """The system with what is offloaded.  said: how that was found."""
    if system.chip.host_link_rate is None and plan.needs_host:
        chip = system.chip.name
        raise UserError(f"{WHERE}: {chip} states no link to a host; a device that shares its memory takes to=disk")
    beside = system.chip.host
    assert beside is not None
    at = f"host={beside.name}" + (f", disk={beside.disk.name}" if beside.disk else "")
    applied = Applied(name=f"offload({said}{plan}, {at})", make=plan.make)
    return replace(system, passes=(*system.passes, applied), copies_beside=plan.overlap != "off")


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
        "host": f"name of a host; {HOST} unless said",
        "disk": f"name of a disk; {DISK} unless said",
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
    example="llmviewer analyze llama-2-70b --hardware a6000 --batch-size 32 --offload zero-inference",
    make=_make,
)
