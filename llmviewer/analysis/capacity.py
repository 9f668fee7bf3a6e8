"""Memory of a request on one device, and how many sequences a replica runs concurrently."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.analysis import memory
from llmviewer.analysis.engine_parts import capacity_bytes, engine_parts, vision_bytes
from llmviewer.analysis.memory import Memory
from llmviewer.analysis.passes import graph_of_device, largest_passes_of
from llmviewer.analysis.pipeline import stores_drafts
from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Place
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import Chip, Host
from llmviewer.models.fields import ABSENT_CONTEXT
from llmviewer.models.model import Model
from llmviewer.serving.encoded_inputs import START_TOKENS
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft, Generation
from llmviewer.serving.kv_cache import KvCache
from llmviewer.serving.schedule import Schedule

#: Memory of a CUDA context and an engine in addition to tensors: vLLM reports "non_torch_memory takes 0.16GiB" on an
#: H100.
FRAMEWORK_BYTES = 0.16 * 2.0**30
#: Makers whose GPUs run such an engine, and the prefix of the generations of their GPUs; elsewhere it is unknown and
#: left out.
FRAMEWORK_GPUS = {"NVIDIA": "", "AMD": "cdna"}
FRAMEWORK_SOURCE = "https://github.com/vllm-project/vllm/pull/12126"


def memory_of_passes(model: Model, system: System, request: Request, plan: Schedule, graph: Graph) -> Memory:
    """Memory of one model: cache at input_len + output_len - 1 tokens for the whole batch, activations of the worst
    pass.

    plan, graph: passes, and the graph of one device, among which the worst is.
    """
    request = _with_draft_tokens(system.parallelism.replica(request), system.generation)
    cache = _resolved_reservation(model, system.kv_cache, graph)
    generation = system.generation
    batch = _BatchCache(graph=graph, request=request, generation=generation)
    stored, capacity = batch.bytes(cache), capacity_bytes(system)
    here = Memory(
        weights_bytes=memory.weights_bytes(graph) + vision_bytes(model, system),
        parts={"vision tower": vision_bytes(model, system)},
        kv_cache_bytes=stored,
        kv_cache_used_bytes=stored if cache == cache.unpaged else batch.bytes(cache.unpaged, cache),
        activations_bytes=plan.max_over_passes(memory.peak_activations(graph)),
        framework_bytes=_framework_bytes(system.chip),
        capacity_bytes=capacity,
        utilization_bytes=capacity * system.memory_utilization,
        cache_fraction=system.cache_fraction,
    )
    if system.engine.memory is not None:
        here = _as_engine_counts(here, model, system, graph)
    return here if system.chip.host is None else _with_host(here, system.chip.host, plan, batch, cache)


def _as_engine_counts(here: Memory, model: Model, system: System, graph: Graph) -> Memory:
    """The memory with the parts that the engine's own profiling run and libraries take.

    Without a limit of tokens per pass, no profiling run is known: activations stay those of the passes.
    """
    constants = system.engine.memory
    assert constants is not None
    found = engine_parts(model, system, graph, constants)
    inside = constants.graphs_in_budget * found.graphs * constants.graph_estimate
    return replace(
        here,
        weights_bytes=here.weights_bytes + sum(found.weights.values()),
        activations_bytes=np.where(np.isfinite(found.activations), found.activations, here.activations_bytes),
        framework_bytes=found.outside_torch,
        cuda_graphs_bytes=inside,
        parts={
            "vision tower": vision_bytes(model, system),
            **found.weights,
            "sampler": found.sampler,
            "layer": found.layer,
            "vision": found.vision,
            "CUDA graphs": found.graphs,
        },
    )


def _with_host(here: Memory, host: Host, plan: Schedule, batch: _BatchCache, cache: KvCache) -> Memory:
    """The memory of the device with what is offloaded to the host and its disk."""
    offloaded = {
        place: memory.weights_bytes(batch.graph, place=place)
        + batch.bytes(cache, place=place)
        + plan.max_over_passes(memory.hidden_states(batch.graph, place))
        for place in (Place.HOST, Place.DISK)
    }
    capacity = np.inf if host.memory_bytes is None else host.memory_bytes / host.devices
    return replace(
        here, host_bytes=offloaded[Place.HOST], disk_bytes=offloaded[Place.DISK], host_capacity_bytes=capacity
    )


def _with_draft_tokens(request: Request, generation: Generation) -> Request:
    """The request with the cache that draft tokens need beyond prompt and output; branches need it each."""
    if generation is AUTOREGRESSIVE or generation.branches is not None:
        return request
    return replace(request, output_len=request.output_len + generation.spare_tokens)


def _resolved_reservation(model: Model, cache: KvCache, graph: Graph) -> KvCache:
    """The cache with the model's maximum context where `--kv-reserve max` asks for it."""
    if cache.reserve != np.inf:
        return cache
    if model.max_context >= ABSENT_CONTEXT and any(state.per_token for block in graph.blocks for state in block.states):
        raise UserError(f"--kv-reserve max: {model.name} states no maximum context; give a number of tokens")
    return replace(cache, reserve=model.max_context)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _BatchCache:
    """The KV cache of a whole batch whose sequences end together, each as one sequence or as several branches.

    Its spare tokens are recurrent states in addition to a sequence's own, and what each branch stores beyond its last.
    """

    graph: Graph
    request: Request
    generation: Generation

    def bytes(self, cache: KvCache, finder: KvCache | None = None, place: Place = Place.DEVICE) -> Count:
        """Bytes at `place`, a shared prefix once.  finder: the cache whose pages decide the prefix hit."""
        request, finder = self.request, finder or cache
        hit = finder.prefix_hit(request.input_len)
        if memory.has_input_states(self.graph):
            return self._beside_input(cache, place)
        forks, spare = self.generation.branches, self.generation.spare_tokens
        if forks is None:
            context = request.input_len + request.output_len - 1.0
            if self.generation.denoising is not None:
                context = self.generation.denoising.cached_tokens(context)
            own, shared = memory.shares_of_cache(self.graph, cache, context, hit, place, spare)
            return own * request.batch_size + shared
        branches, context, common = forks.final_cache(request.input_len, request.output_len)
        context = context + spare
        own, shared = memory.shares_of_cache(self.graph, cache, context, hit, place, spare)
        pages = np.floor(common / finder.block_size) * finder.block_size
        branch, _ = memory.shares_of_cache(self.graph, replace(cache, shared=True), context, pages, place, spare)
        return (branch * branches + (own - branch)) * request.batch_size + shared

    def _beside_input(self, cache: KvCache, place: Place) -> Count:
        """Bytes of an encoder-decoder: its own tokens from the start token on, and the input without reserve."""
        request = self.request
        generated = START_TOKENS + request.output_len - 1.0
        own, _ = memory.shares_of_cache(memory.with_states(self.graph, of_input=False), cache, generated, 0.0, place)
        unreserved, inputs = replace(cache, reserve=0.0), memory.with_states(self.graph, of_input=True)
        encoded, _ = memory.shares_of_cache(inputs, unreserved, request.input_len, 0.0, place)
        return (own + encoded) * request.batch_size


def _framework_bytes(chip: Chip) -> float:
    prefix = FRAMEWORK_GPUS.get(chip.maker)
    return FRAMEWORK_BYTES if prefix is not None and chip.generation.startswith(prefix) else 0.0


def memory_of(model: Model, system: System, request: Request, token_budget: Count = np.inf) -> Memory:
    """Memory of a request without timing any operator, draft models included."""
    request = system.batching.padded(request)
    stored, _ = _memory_and_graph(model, system, request, token_budget)
    for drafter in system.drafters if stores_drafts(model, system) else ():
        own, graph = _memory_and_graph(drafter.draft.model, drafter.system, request, token_budget)
        stored = stored.beside(extra_memory_of_draft(drafter.draft, own, graph))
    return stored


def extra_memory_of_draft(draft: Draft, own: Memory, graph: Graph) -> Memory:
    """Extra memory of a draft model beside its target.  own: its memory if it ran alone."""
    cache = float(draft.caches)
    return replace(
        own,
        weights_bytes=memory.weights_bytes(graph, draft.shared),
        kv_cache_bytes=own.kv_cache_bytes * cache,
        kv_cache_used_bytes=own.kv_cache_used_bytes * cache,
    )


def _memory_and_graph(model: Model, system: System, request: Request, token_budget: Count) -> tuple[Memory, Graph]:
    """Memory of one model, and its graph of one device."""
    plan = largest_passes_of(model, system, request, token_budget)
    graph = graph_of_device(model, system, plan)
    return memory_of_passes(model, system, request, plan, graph), graph


def with_reserved_output(system: System, request: Request) -> Request:
    """The request with the output tokens for which the engine reserves cache when a sequence starts."""
    return replace(request, output_len=np.ceil(request.output_len * system.engine.reserved))


def concurrent_sequences(model: Model, system: System, request: Request, token_budget: Count = np.inf) -> Count:
    """Sequences of a request whose KV cache one replica stores at once, with the output that the engine reserves.

    token_budget: tokens of one pass, which set the activations.
    """
    system = system.one_replica()
    single = 0.0 * request.batch_size + 1.0
    tokens = np.where(np.isinf(token_budget), 0.0, token_budget)
    prompts = np.maximum(np.floor(tokens / request.input_len), single)
    reserved = with_reserved_output(system, request)
    one, two, full = (
        memory_of(model, system, replace(reserved, batch_size=count * single), token_budget)
        for count in (1.0, 2.0, prompts)
    )
    each = np.maximum(two.kv_cache_bytes - one.kv_cache_bytes, 1.0)
    count: Count = np.clip(np.floor(full.kv_cache_budget_bytes / each), 1.0, _max_concurrent(system, request))
    return count


def _max_concurrent(system: System, request: Request) -> Count:
    """Requests whose sequences the engine runs concurrently; each branch counts as one sequence."""
    branches = system.generation.branches
    if branches is None:
        return system.engine.max_num_seqs
    return np.maximum(
        np.floor(system.engine.max_num_seqs / branches.final_cache(request.input_len, request.output_len)[0]), 1.0
    )


def admitted(model: Model, system: System, request: Request, token_budget: float = np.inf) -> Request:
    """The request with no more sequences than the caches of all replicas store at once."""
    count = concurrent_sequences(model, system, request, token_budget) * system.parallelism.data
    return replace(request, batch_size=np.minimum(request.batch_size, count))
