"""What is offloaded, and who computes with it: the passes of a chip, and the host that a system gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from llmviewer.analysis.system import AppliedTechnique, System
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Pass
from llmviewer.hardware.chip import Chip, Figure, Host
from llmviewer.ops.gemm import is_routed
from llmviewer.ops.transfer import Direction, TransferShape
from llmviewer.techniques.offload.flash import Flash, from_flash
from llmviewer.techniques.offload.host import attention_on_host, experts_on_host, layers_on_host
from llmviewer.techniques.offload.places import STAYS, OffloadShares
from llmviewer.techniques.offload.stream import Streams, every, stream

WHERE = "--offload"
#: What may lie elsewhere.
TENSORS = ("weights", "kv", "activations")


class Overlap(Enum):
    """What comes to the device while the layer before computes."""

    SHARE = "on"
    LAYER = "layer"
    NOTHING = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What lies elsewhere, and who computes with it.

    experts: of the weights only the routed experts' go.  on_host: the host computes with what it holds; else it is
    brought to the device.  overlap: what of it comes while the layer before computes, a share of every layer, or whole
    layers of which others stay; with nothing a layer waits for what it needs.  head: it goes where all layers go.
    flash: the disk holds the feed-forward weights instead.
    """

    weights: OffloadShares = STAYS
    kv: OffloadShares = STAYS
    activations: OffloadShares = STAYS
    experts: bool = False
    on_host: bool = False
    overlap: Overlap = Overlap.SHARE
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
        how += [f"overlap={self.overlap.value}"] if self.overlap is not Overlap.SHARE else []
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
            buffers=1.0 if self.overlap is Overlap.NOTHING else 2.0,
            crosses=_crosses(chip),
            of=is_routed if self.experts else every,
            whole_layers=self.overlap is Overlap.LAYER,
            head=self.head,
        )
        idle = not any(away.share for away in (streams.weights, streams.kv, streams.activations))
        return [] if idle else [stream(streams)]


def _crosses(chip: Chip) -> bool:
    """Whether a link lies between the device and its host."""
    return chip.host_link_rate is not None


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
    applied = AppliedTechnique(name=f"offload({said}{plan}, {at})", make=plan.make)
    return replace(system, passes=(*system.passes, applied), copies_beside=plan.overlap is not Overlap.NOTHING)
