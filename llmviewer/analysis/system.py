"""What a model runs on, and how: one noun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.ir import Graph, Pass
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import Chip
from llmviewer.models.model import Model
from llmviewer.serving.batching import STATIC, Batching
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft, Generation, GenerationScheme
from llmviewer.serving.kv_cache import DEFAULT_KV_CACHE, KvCache
from llmviewer.timing.efficiency import Efficiency, ideal
from llmviewer.timing.engine import KERNELS_ONLY, Engine


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RuleOutcome:
    """What a rule did: its operators of a block, at which points (1.0: fired), the kernel it made, and why so.

    assumed: that a tile fits the chip.
    """

    rule: str
    block: str = ""
    operators: tuple[str, ...] = ()
    where: Count = 0.0
    kernel: str = ""
    reason: str = ""
    assumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AppliedTechnique:
    """A technique and the name under which results list it.  make: the chip it runs on -> the pass.

    explain: which of its rules fire on the graph that the pass gets, where it has rules.
    """

    name: str
    make: Callable[[Chip], Pass]
    explain: Callable[[Graph, Chip], tuple[RuleOutcome, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How many devices share the work, by what they share.  A graph is always that of one device.

    microbatches: parts of a batch that follow each other through the pipeline.
    expert: devices to which whole experts are dealt, those of the tensor and data groups; 1: they are split.
    sequence: norms and residual sums are shared by tokens in a tensor group.
    instances: machines like this one that serve together (disaggregation).
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    sequence: bool = False
    microbatches: int = 1
    instances: int = 1

    @property
    def devices(self) -> int:
        """All of them."""
        return self.tensor * self.pipeline * self.data * self.context * self.instances

    @property
    def group(self) -> int:
        """Devices of one stage that exchange data."""
        return self.tensor * self.context * (self.data if self.expert > 1 else 1)

    @property
    def exchanging(self) -> int:
        """Those that send each other messages: replicas do not, unless they share experts."""
        return self.group * self.pipeline

    def replica(self, request: Request) -> Request:
        """What the fullest replica serves of a request."""
        if self.data == 1:
            return request
        return replace(request, batch_size=np.ceil(request.batch_size / self.data))

    def in_flight(self, request: Request) -> Count:
        """Micro-batches of a replica's batch: no more than it has sequences."""
        if self.microbatches == 1:
            return 1.0
        return np.minimum(self.replica(request).batch_size, float(self.microbatches))

    def microbatch(self, request: Request) -> Request:
        """What goes through the pipeline at once: the fullest micro-batch of the fullest replica."""
        own = self.replica(request)
        if self.microbatches == 1:
            return own
        return replace(own, batch_size=np.ceil(own.batch_size / self.in_flight(request)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class System:
    """A chip, the passes applied to every graph in order, and the efficiency of kernels.

    memory_utilization: the fraction of the capacity an engine may use.  cache_fraction: instead of it, the fraction of
    what weights and activations leave that the cache may use.  kv_cache: how the cache is kept.
    engine: what serves the model, and the time it adds beside kernels.  batching: how sequences share it.
    spatial: there are as many chips as hold the model, with a cache of resident_tokens tokens, in on-chip memory.
    scheme: how tokens are generated, as asked for; generation, drafters: what that is for the model.
    copies_beside: what is offloaded comes to the device while the layer before computes.
    policy: what of a technique depends on the request: model, system, request, token budget -> the system for it.
    """

    chip: Chip
    passes: tuple[AppliedTechnique, ...] = ()
    efficiency: Efficiency = ideal
    memory_utilization: float = 0.9
    cache_fraction: float | None = None
    kv_cache: KvCache = DEFAULT_KV_CACHE
    parallelism: Parallelism = Parallelism()
    spatial: bool = False
    resident_tokens: float = 0.0
    engine: Engine = KERNELS_ONLY
    batching: Batching = STATIC
    scheme: GenerationScheme | None = None
    generation: Generation = AUTOREGRESSIVE
    copies_beside: bool = False
    policy: Policy | None = None
    drafters: tuple[Drafter, ...] = ()

    def generating(self, generation: Generation) -> System:
        """The system that generates so; its drafters stay what they are and run as `generation` has them run."""
        drafters = tuple(
            Drafter(draft=draft, system=replace(one.system, generation=_drafting(draft, generation)))
            for draft, one in zip(generation.drafts, self.drafters, strict=True)
        )
        return replace(self, generation=generation, drafters=drafters)

    def at(self, point: int) -> System:
        """The system with one of its hypothetical chips, on which what drafts for the model runs as well."""
        if self.chip.points == 1:
            return self
        drafters = tuple(replace(one, system=one.system.at(point)) for one in self.drafters)
        return replace(self, chip=self.chip.spread(np.array([float(point)])), drafters=drafters)

    def one_replica(self) -> System:
        """The system without the other replicas, of the model and of what drafts for it."""
        drafters = tuple(replace(one, system=one.system.one_replica()) for one in self.drafters)
        return replace(self, parallelism=replace(self.parallelism, data=1), drafters=drafters)

    def prepared(self, graph: Graph) -> Graph:
        """The graph after all passes."""
        for applied in self.passes:
            graph = applied.make(self.chip)(graph)
        return graph


Policy: TypeAlias = Callable[[Model, System, Request, float], System]


def _drafting(draft: Draft, generation: Generation) -> Generation:
    """The passes of a draft; its cache has room for what the model verifies."""
    return Generation(shape=draft.shape, min_spare_tokens=generation.spare_tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drafter:
    """What drafts, and what it runs on."""

    draft: Draft
    system: System
