"""The system that a model runs on: chip, techniques, parallelism, engine and batching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from itertools import groupby
from typing import TypeAlias

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph, Pass, as_built
from llmviewer.core.recording import Programs
from llmviewer.core.running import ran
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import Chip
from llmviewer.models.model import Model
from llmviewer.serving.batching import STATIC, Batching
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft, Generation, GenerationScheme
from llmviewer.serving.holding import Hold
from llmviewer.serving.kv_cache import DEFAULT_KV_CACHE, KvCache
from llmviewer.timing.engine import KERNELS_ONLY, Engine
from llmviewer.timing.roofline import Efficiency, ideal

#: Fraction of the memory that an engine may use unless the user states it.
USUAL_UTILIZATION = 0.9


@frozen(eq=False)
class RuleOutcome:
    """Outcome of a fusion rule on operators of a block.

    where: 1.0 at the points at which it applied.  kernel: the fused kernel.  reason: why it did or did not apply.
    assumed: whether it is only assumed that a tile fits the chip.
    """

    rule: str
    block: str = ""
    operators: tuple[str, ...] = ()
    where: Count = 0.0
    kernel: str = ""
    reason: str = ""
    assumed: bool = False


@frozen(eq=False)
class AppliedTechnique:
    """A technique with the name under which results list it.

    make: chip -> graph pass.  explain: outcomes of its rules on the graph before the pass; None without rules.  caveat:
    what results assume with it, in a sentence.  divides: whether it leaves one device's part of the model.
    """

    name: str
    make: Callable[[Chip], Pass]
    explain: Callable[[Graph, Chip], tuple[RuleOutcome, ...]] | None = None
    caveat: str = ""
    divides: bool = False


@frozen(eq=False)
class PipelineExits:
    """Early exit in a pipeline.

    change: graph of all layers, graphs of the pipeline stages -> those of stages that exit.  unknown: graph of all
    layers -> probability that the tokens of a pass are not known before each layer, where stages go on with a pass
    whose tokens are known while the next one begins; None where the next one begins after all stages.
    """

    change: Callable[[Graph, tuple[Graph, ...]], tuple[Graph, ...]]
    unknown: Callable[[Graph], tuple[Count, ...]] | None = None


@frozen
class Parallelism:
    """Numbers of devices by what they split.  A graph is always that of one device.

    microbatches: parts of a batch that go through the pipeline one after another.  fills: their number was not
    requested, so that a batching without a common start may fill the pipeline.
    expert: devices over which whole experts are distributed (tensor x data groups); 1: each expert is split.
    sequence: norms and residual sums are split by tokens in a tensor group.
    instances: replicas like this one that serve together (disaggregation).
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    sequence: bool = False
    microbatches: int = 1
    fills: bool = False
    instances: int = 1

    @property
    def devices(self) -> int:
        """Number of all devices."""
        return self.tensor * self.pipeline * self.data * self.context * self.instances

    @property
    def group(self) -> int:
        """Devices of one pipeline stage that exchange data."""
        return self.tensor * self.context * self.ranks

    @property
    def ranks(self) -> int:
        """Replicas that share experts (attention data parallelism): they exchange tokens in every layer, so that each
        step of one is a step of all."""
        return self.data if self.expert > 1 else 1

    @property
    def exchanging(self) -> int:
        """Devices that exchange messages; replicas do so only if they share experts."""
        return self.group * self.pipeline

    def replica(self, request: Request) -> Request:
        """The request of the fullest replica."""
        if self.data == 1:
            return request
        return replace(request, batch_size=np.ceil(request.batch_size / self.data))

    def in_flight(self, request: Request) -> Count:
        """Micro-batches of a replica's batch, at most one per sequence."""
        if self.microbatches == 1:
            return 1.0
        return np.minimum(self.replica(request).batch_size, float(self.microbatches))

    def microbatch(self, request: Request) -> Request:
        """The fullest micro-batch of the fullest replica."""
        own = self.replica(request)
        if self.microbatches == 1:
            return own
        return replace(own, batch_size=np.ceil(own.batch_size / self.in_flight(request)))


@frozen(eq=False)
class System:
    """A chip, the passes applied to every graph in order, and the efficiency of kernels.

    memory_utilization: fraction of the capacity that an engine may use.  margin_bytes: of it that stays free.
    cache_fraction: if set, the fraction of the
    memory left by weights and activations that the KV cache may use instead.  kv_cache: allocation of the cache.
    engine: the serving engine, whose time is added to that of kernels.  batching: how sequences share a replica.
    spatial: on-chip memory of all chips holds the model and a cache of `resident_tokens` tokens.
    scheme: the requested generation scheme; generation, drafters: the scheme applied to the model.
    copies_beside: offloaded tensors are copied to the device while the layer before computes.
    block: micro-batches go through one device, layer by layer, and share copies of the weights (GPU batches).
    any_chunks: engines may cut prefill passes into chunks of any size; times in a pipeline are bounds over all sizes.
    hold: how its engine holds prompts back; None: a prompt joins the next step that has room.
    policy: adapts the system to a request: model, system, request, token budget -> system.
    exits: early exit in a pipeline.  over_answer: adapts the system to the place of the tokens of every pass in their
    answer (passes.places_in_answers); None if no technique depends on it.
    split: the devices of a pipeline whose layers are divided by shares; the system itself is that of the fullest one.
    programs: what this very system computes again and again; a changed copy begins with none.
    """

    chip: Chip
    passes: tuple[AppliedTechnique, ...] = ()
    efficiency: Efficiency = ideal
    memory_utilization: float = USUAL_UTILIZATION
    margin_bytes: float = 0.0
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
    block: bool = False
    any_chunks: bool = False
    hold: Hold | None = None
    policy: Policy | None = None
    exits: PipelineExits | None = None
    over_answer: Callable[[System, Count], System] | None = None
    drafters: tuple[Drafter, ...] = ()
    split: Split | None = None
    programs: Programs = field(init=False, default_factory=Programs)

    @property
    def hardware(self) -> str:
        """The name of its chip, or the chips of a split in order: `rtx-4090+2xrtx-3090`."""
        if self.split is None:
            return self.chip.name
        kinds = [(name, len(list(same))) for name, same in groupby(one.chip.name for one in self.split.stages)]
        return "+".join(f"{count}x{name}" if count > 1 else name for name, count in kinds)

    @property
    def outside_kernels_s(self) -> Count:
        """Time of a round of speculation outside kernels [s]: the scheme's own, and the engine's to verify drafts."""
        return self.generation.extra_s + self.generation.verifies * (self.engine.rounds.round * 1e-6)

    def request_s(self, step_s: Count) -> Count:
        """Time before a user sees the first token, beside its pass [s]: of the host, and of the steps that it is late.

        step_s: a decode step.  Tokens of speculation are not late: their engines process a round before the next one.
        """
        return self.engine.request_s + self.engine.late_steps * step_s * np.where(self.generation.verifies, 0.0, 1.0)

    def generating(self, generation: Generation) -> System:
        """The system with another generation, which sets the passes of its draft models."""
        drafters = tuple(
            Drafter(draft=draft, system=replace(one.system, generation=_drafting(draft, generation)))
            for draft, one in zip(generation.drafts, self.drafters, strict=True)
        )
        return replace(self, generation=generation, drafters=drafters)

    def at(self, point: int) -> System:
        """The system with one of its hypothetical chips, draft models included."""
        if self.chip.points == 1:
            return self
        drafters = tuple(replace(one, system=one.system.at(point)) for one in self.drafters)
        return replace(self, chip=self.chip.spread(np.array([float(point)])), drafters=drafters)

    def one_replica(self) -> System:
        """The system with a single replica of the model and of its draft models."""
        if self.parallelism.data == 1 and not self.drafters:
            return self
        drafters = tuple(replace(one, system=one.system.one_replica()) for one in self.drafters)
        return replace(self, parallelism=replace(self.parallelism, data=1), drafters=drafters)

    def unallocated(self) -> System:
        """The system whose engine allocates no more KV cache than requests need."""
        if not self.engine.allocated_tokens:
            return self
        split = None if self.split is None else self.split.with_each(System.unallocated)
        return replace(self, engine=replace(self.engine, max_model_len=None), split=split)

    def prefilling(self) -> System:
        """The system while it prefills prompts, with the draft models that do so too, and no rounds yet."""
        drafters = tuple(replace(one, system=one.system.prefilling()) for one in self.drafters)
        return replace(self, generation=AUTOREGRESSIVE, drafters=drafters)

    def applies(self, word: str) -> bool:
        """Whether a technique is applied whose name begins with `word`."""
        return any(applied.name.startswith(word) for applied in self.passes)

    def listing(self, name: str) -> System:
        """The system with one more technique in its list, which changes no operator."""
        return replace(self, passes=(*self.passes, AppliedTechnique(name=name, make=lambda _: as_built)))

    def prepared(self, graph: Graph) -> Graph:
        """The graph after all graph passes."""
        for applied in self.passes:
            graph = applied.make(self.chip)(graph)
        return ran(graph)

    def undivided(self) -> System:
        """The system with the graph passes that leave the whole model on one device."""
        kept = tuple(applied for applied in self.passes if not applied.divides)
        return replace(self, passes=kept, parallelism=Parallelism(), split=None)


@frozen(eq=False)
class Split:
    """Devices, alike or not, that each hold their share of the layers as one pipeline stage.

    stages: the system on each device, in order.  shares: of the layers, whose sum need not be 1.  machines: the number
    of the machine that each device stands in, where a network joins several.  change: of the part of each device.
    """

    stages: tuple[System, ...]
    shares: tuple[float, ...]
    machines: tuple[int, ...]
    change: Pass = as_built

    def with_each(self, changed: Callable[[System], System]) -> Split:
        """The split with another system on each device; devices of one system still share one."""
        known = {id(one): changed(one) for one in self.stages}
        return replace(self, stages=tuple(known[id(one)] for one in self.stages))


Policy: TypeAlias = Callable[[Model, System, Request, float], System]


def _drafting(draft: Draft, generation: Generation) -> Generation:
    """The passes of a draft model; its cache has room for the tokens that the target verifies."""
    spare = generation.spare_tokens
    return Generation(shape=draft.shape, min_spare_tokens=spare, branches=generation.branches)


@frozen(eq=False)
class Drafter:
    """A draft model and the system that it runs on."""

    draft: Draft
    system: System
