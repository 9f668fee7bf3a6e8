"""Offload plans: which tensors are offloaded, which side computes with them, and the resulting graph passes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial

import numpy as np

from llmviewer.analysis.system import AppliedTechnique, System
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph, Pass
from llmviewer.hardware.chip import Chip, Figure, Host
from llmviewer.ops.gemm import is_routed
from llmviewer.ops.transfer import Direction, TransferShape
from llmviewer.techniques.layer_settings import ranges_of
from llmviewer.techniques.offload.flash import Flash, load_neurons_from_disk
from llmviewer.techniques.offload.host import OnHost, attention_on_host, experts_on_host, layers_on_host
from llmviewer.techniques.offload.places import ON_DEVICE, OffloadShares, first_layers
from llmviewer.techniques.offload.stream import Streams, all_weights, stream
from llmviewer.timing.calibrated import attainable
from llmviewer.timing.roofline import ideal

WHERE = "--offload"
#: Kinds of tensors that can be offloaded.
TENSORS = ("weights", "kv", "activations")


class Overlap(Enum):
    """Copies to the device that run while the previous layer computes: a share of every layer, whole layers, none."""

    SHARE = "on"
    LAYER = "layer"
    NOTHING = "off"


class HostWork(Enum):
    """Most work that the host may do: nothing, attention over its part of the cache, or layers and experts too."""

    NOTHING = "device"
    ATTENTION = "attention"
    LAYERS = "host"


@frozen
class Offload:
    """Shares of the offloaded tensors, and which side computes with them.

    experts: only weights of routed experts are offloaded.  on_host: the host computes with its tensors; otherwise they
    are copied to the device.  delegates: the host computes attention over its cache, but nothing else.  overlap:
    whether copies run while the previous layer computes, for a share of every layer or for whole layers; with NOTHING
    a layer waits for its copies.  head: lm_head is offloaded if all layers are.  flash: the feed-forward weights are
    read from the disk instead.  gpu_batches: parts of the batch (the block) that go through every layer one after
    another; one copy of the layer's weights serves them all.  copies: of keys and values that the host makes, in fp32
    and for every query head, before it attends.  layers, expert_layers: numbers of the layers that the host computes,
    and of those of which it computes the experts, beside what the shares say; streamed_from: as of OnHost.
    """

    weights: OffloadShares = ON_DEVICE
    kv: OffloadShares = ON_DEVICE
    activations: OffloadShares = ON_DEVICE
    experts: bool = False
    on_host: bool = False
    delegates: bool = False
    overlap: Overlap = Overlap.SHARE
    head: bool = True
    flash: Flash | None = None
    gpu_batches: int = 1
    copies: float = 0.0
    layers: tuple[int, ...] = ()
    expert_layers: tuple[int, ...] = ()
    streamed_from: float = np.inf

    @property
    def is_empty(self) -> bool:
        """Whether everything stays on the device, and the batch is whole."""
        return (
            self.flash is None
            and self.gpu_batches == 1
            and not (self.layers or self.expert_layers)
            and not any(a.share for a in (self.weights, self.kv, self.activations))
        )

    @property
    def needs_host(self) -> bool:
        """Whether tensors are stored in the memory of the host."""
        named = bool(self.layers or self.expert_layers)
        return named or any(a.host for a in (self.weights, self.kv, self.activations))

    def __str__(self) -> str:
        if self.flash is not None:
            return f"flash: kept={self.flash.kept:g}, fresh={self.flash.fresh:g}"
        shares = ((name, getattr(self, name)) for name in TENSORS)
        texts = [f"{'experts' if self.experts and name == 'weights' else name} {of}" for name, of in shares if of.share]
        numbered = (("layers", self.layers), ("experts of layers", self.expert_layers))
        texts += [f"{what} {'/'.join(ranges_of(which))} host" for what, which in numbered if which]
        texts += ["compute=host"] if self.on_host else ["compute=attention"] if self.delegates and self.kv.share else []
        texts += [f"overlap={self.overlap.value}"] if self.overlap is not Overlap.SHARE else []
        texts += [f"copies={self.copies:g}"] if self.copies else []
        texts += [f"gpu_batches={self.gpu_batches}"] if self.gpu_batches > 1 else []
        return ", ".join(texts) or "all on the device"

    def make(self, chip: Chip) -> Pass:
        """The graph pass of this plan on a chip."""
        if self.flash is not None:
            return load_neurons_from_disk(
                self.flash, TransferShape(direction=Direction.IN, over_link=_has_host_link(chip))
            )
        passes = [*self._host_passes(), *self._copy_passes(chip)]

        def change(graph: Graph) -> Graph:
            for graph_pass in passes:
                graph = graph_pass(graph)
            return graph

        return change

    def _host_passes(self) -> list[Pass]:
        """Passes that move work to the host."""
        share = self.weights.share if self.on_host else 0.0
        passes = []
        if share and self.experts:
            passes.append(experts_on_host(OnHost(chosen=partial(first_layers, share=1.0), share=share)))
        elif share:
            chosen = partial(first_layers, share=share)
            passes.append(layers_on_host(OnHost(chosen=chosen, streamed_from=self.streamed_from)))
        for make, numbers in ((layers_on_host, self.layers), (experts_on_host, self.expert_layers)):
            if numbers:
                passes.append(make(OnHost(chosen=constant(numbers), head=False, streamed_from=self.streamed_from)))
        attends = (self.on_host or self.delegates) and self.kv.share
        return [*passes, attention_on_host(self.kv, self.copies)] if attends else passes

    def _copy_passes(self, chip: Chip) -> list[Pass]:
        """Passes that copy offloaded tensors to the device."""
        streams = Streams(
            weights=ON_DEVICE if self.on_host else self.weights,
            kv=ON_DEVICE if self.on_host or self.delegates else self.kv,
            activations=self.activations,
            buffers=1.0 if self.overlap is Overlap.NOTHING else 2.0,
            over_link=_has_host_link(chip),
            selects=is_routed if self.experts else all_weights,
            whole_layers=self.overlap is Overlap.LAYER,
            head=self.head,
            batches=float(self.gpu_batches),
        )
        idle = self.gpu_batches == 1 and not any(
            shares.share for shares in (streams.weights, streams.kv, streams.activations)
        )
        return [] if idle else [stream(streams)]


def constant(numbers: Collection[int]) -> Callable[[Graph], Collection[int]]:
    """The choice of these layers in every graph."""
    return lambda _: numbers


def _has_host_link(chip: Chip) -> bool:
    """Whether the device is connected to its host by a link, instead of sharing its memory."""
    return chip.host_link_rate is not None


def with_host(
    system: System, host: Host, figures: Mapping[str, Figure], *, pinned: bool = True, experts: bool = False
) -> System:
    """The system with a host that all devices share.

    figures: data-sheet figures of the host.  pinned: copies read page-locked memory.  experts: it computes
    routed experts.  Ideal times take full rates.
    """
    chip = system.chip
    if chip.host is not None:
        raise UserError(f"{WHERE}: --hot-neurons already offloads weights to the host; remove one")
    reached = host if system.efficiency is ideal else attainable(host, pinned=pinned, experts=experts)
    shared = replace(reached, devices=system.parallelism.devices)
    return replace(system, chip=replace(chip, host=shared, figures={**chip.figures, **figures}))


def with_offload(system: System, plan: Offload, prefix: str = "") -> System:
    """The system with an offload plan.  prefix: of the plan in the name of the pass, such as `flexgen: `."""
    if system.chip.host_link_rate is None and plan.needs_host:
        chip = system.chip.name
        raise UserError(
            f"{WHERE}: {chip} has no link to a host; use to=disk if the device shares the memory of its host"
        )
    if plan.gpu_batches > 1:
        system = _in_batches(system, plan.gpu_batches)
    host = system.chip.host
    assert host is not None
    where = f"host={host.name}" + (f", disk={host.disk.name}" if host.disk else "")
    applied = AppliedTechnique(name=f"offload({prefix}{plan}, {where})", make=plan.make)
    return replace(system, passes=(*system.passes, applied), copies_beside=plan.overlap is not Overlap.NOTHING)


def _in_batches(system: System, count: int) -> System:
    """The system whose static batch is divided into GPU batches."""
    own = system.parallelism
    if own.pipeline > 1 or system.spatial:
        raise UserError(f"{WHERE} gpu_batches: the stages of a pipeline have micro-batches of their own; remove one")
    return replace(system, parallelism=replace(own, microbatches=count), block=True)
