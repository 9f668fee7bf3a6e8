"""What a request holds on one device, and how many sequences an engine has room for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from llmviewer.analysis import memory
from llmviewer.analysis.memory import Memory
from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Place
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import Chip, Host
from llmviewer.models.model import Model
from llmviewer.models.sizes import ABSENT_CONTEXT
from llmviewer.serving.branches import Branches
from llmviewer.serving.generation import PLAIN as DECODING
from llmviewer.serving.generation import Draft, Generation
from llmviewer.serving.kv_cache import KvCache
from llmviewer.serving.schedule import Schedule, largest_passes

#: What a CUDA context and an engine hold beside tensors: vLLM reports "non_torch_memory takes 0.16GiB" on an H100.
FRAMEWORK_BYTES = 0.16 * 2.0**30
#: Whose chips run such an engine, and what the generations of their GPUs begin with; elsewhere the share is unknown
#: and left out.
FRAMEWORK_GPUS = {"NVIDIA": "", "AMD": "cdna"}
FRAMEWORK_SOURCE = "https://github.com/vllm-project/vllm/pull/12126"


def per_pass(system: System, plan: Schedule, piece: slice | npt.NDArray[np.intp] = slice(None)) -> System:
    """The system with the figures of the chip that runs each pass of a piece of the schedule, or of some passes."""
    return system if system.chip.points == 1 else replace(system, chip=system.chip.spread(plan.owners[piece]))


def memory_in(model: Model, system: System, request: Request, plan: Schedule, graph: Graph) -> Memory:
    """Cache at input_len + output_len - 1 tokens for the whole batch; activations at the worst pass."""
    request = _with_room(system.parallelism.replica(request), system.generation)
    cache = _reserving(model, system.kv_cache, graph)
    generation = system.generation
    cached = _Cached(graph=graph, request=request, branches=generation.branches, spare=generation.room_tokens)
    held = cached.bytes(cache)
    here = Memory(
        weights_bytes=memory.weights_bytes(graph),
        kv_cache_bytes=held,
        kv_cache_used_bytes=held if cache == cache.exact else cached.bytes(cache.exact, cache),
        activations_bytes=plan.worst(memory.peak_activations(graph)),
        framework_bytes=_framework_bytes(system.chip),
        capacity_bytes=system.chip.memory_bytes,
        utilization_bytes=system.chip.memory_bytes * system.memory_utilization,
        cache_fraction=system.cache_fraction,
    )
    return here if system.chip.host is None else _offloaded(here, system.chip.host, plan, cached, cache)


def _offloaded(here: Memory, host: Host, plan: Schedule, cached: _Cached, cache: KvCache) -> Memory:
    """With what lies on the host and its disk instead."""
    there = {
        place: memory.weights_bytes(cached.graph, place=place)
        + cached.bytes(cache, place=place)
        + plan.worst(memory.hidden_states(cached.graph, place))
        for place in (Place.HOST, Place.DISK)
    }
    capacity = np.inf if host.memory_bytes is None else host.memory_bytes / host.devices
    return replace(here, host_bytes=there[Place.HOST], disk_bytes=there[Place.DISK], host_capacity_bytes=capacity)


def _with_room(request: Request, generation: Generation) -> Request:
    """The request with what its sequences hold beyond prompt and output."""
    if generation is DECODING:
        return request
    return replace(request, output_len=request.output_len + generation.room_tokens)


def _reserving(model: Model, cache: KvCache, graph: Graph) -> KvCache:
    """The cache with the model's maximum context where that much is reserved."""
    if cache.reserve != np.inf:
        return cache
    if model.max_context >= ABSENT_CONTEXT and any(state.per_token for block in graph.blocks for state in block.states):
        raise UserError(f"--kv-reserve max: {model.name} states no maximum context; give a number of tokens")
    return replace(cache, reserve=model.max_context)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cached:
    """Whose cache it is: of a whole batch, all of whose sequences end together, as one each or as several branches.

    spare: recurrent states beside a sequence's own.
    """

    graph: Graph
    request: Request
    branches: Branches | None = None
    spare: Count = 0.0

    def bytes(self, cache: KvCache, finder: KvCache | None = None, place: Place = Place.DEVICE) -> Count:
        """What it takes, a shared prefix once.  finder: whose pages say what of the prompt is found."""
        request, finder = self.request, finder or cache
        found = finder.found(request.input_len)
        if self.branches is None:
            context = request.input_len + request.output_len - 1.0
            own, shared = memory.shares_of_cache(self.graph, cache, context, found, place, self.spare)
            return own * request.batch_size + shared
        branches, context, common = self.branches.held(request.input_len, request.output_len)
        own, shared = memory.shares_of_cache(self.graph, cache, context, found, place)
        pages = np.floor(common / finder.block_size) * finder.block_size
        branch, _ = memory.shares_of_cache(self.graph, replace(cache, shared=True), context, pages, place)
        return (branch * branches + (own - branch)) * request.batch_size + shared


def _framework_bytes(chip: Chip) -> float:
    prefix = FRAMEWORK_GPUS.get(chip.maker)
    return FRAMEWORK_BYTES if prefix is not None and chip.generation.startswith(prefix) else 0.0


def memory_of(model: Model, system: System, request: Request, token_budget: Count = np.inf) -> Memory:
    """Memory alone, without timing a single operator; what drafts is held beside the model."""
    request = system.batching.lasting(request)
    held, _ = _laid_out(model, system, request, token_budget)
    for drafter in system.drafters:
        own, graph = _laid_out(drafter.draft.model, drafter.system, request, token_budget)
        held = held.beside(of_draft(drafter.draft, own, graph))
    return held


def of_draft(draft: Draft, held: Memory, graph: Graph) -> Memory:
    """Of what a model holds, what is held more where it drafts for another."""
    cache = float(draft.caches)
    return replace(
        held,
        weights_bytes=0.0 if draft.shared is None else memory.weights_bytes(graph, draft.shared),
        kv_cache_bytes=held.kv_cache_bytes * cache,
        kv_cache_used_bytes=held.kv_cache_used_bytes * cache,
    )


def _laid_out(model: Model, system: System, request: Request, token_budget: Count) -> tuple[Memory, Graph]:
    """The memory of one model, and its graph of one device."""
    plan = largest_passes(system.parallelism.microbatch(request), token_budget, system.kv_cache, system.generation)
    graph = on_a_device(model, system, plan)
    return memory_in(model, system, request, plan, graph), graph


def on_a_device(model: Model, system: System, plan: Schedule) -> Graph:
    """The graph of one device, in a pipeline of the fullest stage."""
    graph = per_pass(system, plan).prepared(model.graph(plan.step))
    if system.parallelism.pipeline == 1:
        return graph
    from llmviewer.analysis.pipeline import fullest, stages_of  # only pipelines need it

    stages = stages_of(graph, system)
    return stages[fullest(stages)]


def roomy(system: System, request: Request) -> Request:
    """The request with the part of its answer for which a sequence gets room in the cache when it starts."""
    return replace(request, output_len=np.ceil(request.output_len * system.engine.reserved))


def places(model: Model, system: System, request: Request, token_budget: Count = np.inf) -> Count:
    """Sequences of a request that a replica's cache holds at once, each with the room that the engine reserves.

    token_budget: tokens of a pass, for the activations beside the cache.
    """
    system = system.one_replica()
    alone = 0.0 * request.batch_size + 1.0
    tokens = np.where(np.isinf(token_budget), 0.0, token_budget)
    prompts = np.maximum(np.floor(tokens / request.input_len), alone)
    one, two, full = (
        memory_of(model, system, replace(roomy(system, request), batch_size=count * alone), token_budget)
        for count in (1.0, 2.0, prompts)
    )
    each = np.maximum(two.kv_cache_bytes - one.kv_cache_bytes, 1.0)
    held: Count = np.clip(np.floor(full.kv_cache_budget_bytes / each), 1.0, _most_at_once(system, request))
    return held


def _most_at_once(system: System, request: Request) -> Count:
    """Requests of which the engine runs all sequences at once; a branch is one."""
    branches = system.generation.branches
    if branches is None:
        return system.engine.max_num_seqs
    return np.maximum(
        np.floor(system.engine.max_num_seqs / branches.held(request.input_len, request.output_len)[0]), 1.0
    )


def admitted(model: Model, system: System, request: Request, token_budget: float = np.inf) -> Request:
    """The request with as many sequences as the caches of all replicas hold at once."""
    held = places(model, system, request, token_budget) * system.parallelism.data
    return replace(request, batch_size=np.minimum(request.batch_size, held))
