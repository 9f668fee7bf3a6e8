"""Memory of a request on one device, and how many sequences a replica runs concurrently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import partial

import numpy as np

from llmviewer.analysis import memory
from llmviewer.analysis.compute_buffers import TABLE_ON_HOST, as_ggml_counts
from llmviewer.analysis.engine_parts import capacity_bytes, engine_parts, vision_bytes
from llmviewer.analysis.evaluation import graph_of_device, largest_passes_of
from llmviewer.analysis.memory import Memory
from llmviewer.analysis.pipeline import Device, devices_of, stores_drafts
from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph, Place
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import Chip, Host
from llmviewer.layers.compressed_attention import INDEX_CACHE
from llmviewer.models.config import ABSENT_CONTEXT
from llmviewer.models.model import Model
from llmviewer.serving.batching import STATIC, Replica, Running
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft, Generation
from llmviewer.serving.kv_cache import KvCache
from llmviewer.serving.schedule import START_TOKENS, Schedule
from llmviewer.serving.scheduling import SCHEDULERS, USUAL

#: Tokens of a block; of latent attention.
BLOCK_TOKENS, LATENT_BLOCK_TOKENS = 16.0, 64.0
#: Kinds whose numbers of layers differ by less than this factor form one group each.
SIMILAR = 1.25
#: DeepSeek-V4, whose cache has a format of its own: bytes of an entry (448 values of 8 bit, 64 of 16 bit, scales) and
#: of an index key (128 values of 8 bit, a scale), alignment of a page, tokens of a block and of one of a window.
#: Source: groups of a running vLLM, https://github.com/vllm-project/vllm/issues/54703
ENTRY_BYTES, INDEX_BYTES, PAGE_ALIGNMENT = 584.0, 132.0, 576.0
COMPRESSED_TOKENS, WINDOW_TOKENS = 256.0, 64.0
#: Values of its compressed entries per layer and token -> (window of the compressor's state, tokens of its block).
COMPRESSORS = {128.0: (8.0, 4.0), 4.0: (128.0, 8.0)}
#: Name of its compressed entries in the graph.
COMPRESSED = "compressed_cache"


@frozen
class States:
    """Blocks of short-lived states: each group holds the last `window` tokens in blocks of `tokens`."""

    window: float
    groups: float
    tokens: float


@frozen
class CacheBlocks:
    """The pool's layout on one device.

    layers: layers per block.  groups: window -> groups of layers.  token_bytes: of one layer.  tokens: of a block.
    longer: window -> tokens of a block over `tokens`, where a layer has fewer bytes per token.
    state_groups: groups of recurrent layers, each with one block per request.  states: groups beside those of layers.
    """

    layers: float
    groups: dict[float, float]
    token_bytes: float
    tokens: float
    longer: Mapping[float, float] = field(default_factory=dict)
    state_groups: float = 0.0
    states: tuple[States, ...] = ()

    @property
    def block_bytes(self) -> float:
        """Bytes of one block of the pool."""
        return self.layers * self.token_bytes * self.tokens

    def blocks(self, budget: Count) -> Count:
        """Whole blocks in a budget."""
        return np.floor(budget / self.block_bytes)

    def capacity_tokens(self, budget: Count) -> Count:
        """Tokens that vLLM before 0.20.2 reports for a budget, as if every group stored all of them."""
        groups = sum(self.groups.values()) + self.state_groups + sum(one.groups for one in self.states)
        fewest = min((self.tokens, *(one.tokens for one in self.states)))
        return np.floor(self.blocks(budget) / groups) * fewest

    def blocks_of(self, context: Count, batched_tokens: float) -> Count:
        """Blocks that one request of `context` tokens may occupy.

        A windowed layer keeps window - 1 tokens beside those of the pass, from any place within a block.
        """
        occupied: Count = self.state_groups
        for window, groups in self.groups.items():
            tokens = self.tokens * self.longer.get(window, 1.0)
            occupied = occupied + groups * _blocks(context, window, tokens, batched_tokens)
        for one in self.states:
            occupied = occupied + one.groups * _blocks(context, one.window, one.tokens, batched_tokens)
        return occupied

    def concurrency(self, budget: Count, context: Count, batched_tokens: float) -> Count:
        """Requests of `context` tokens whose caches fit in a budget, as a fraction."""
        return self.blocks(budget) / self.blocks_of(context, batched_tokens)


def _blocks(context: Count, window: float, tokens: float, batched_tokens: float) -> Count:
    """Blocks of one group for one request."""
    if window == np.inf:
        return np.ceil(context / tokens)
    return np.ceil(np.minimum(window - 1.0 + batched_tokens, context) / tokens) + 1.0


def cache_blocks(graph: Graph) -> CacheBlocks | str:
    """The layout of a graph's cache, or why there is none: no cache, recurrent state alone, widths that do not divide
    each other."""
    if any(state.name == COMPRESSED for block in graph.blocks for state in block.states):
        return _compressed_blocks(graph)
    widths: dict[float, float] = {}
    states = [0.0]
    layers: dict[float, float] = {}
    recurrent, latent = 0.0, False
    for block in graph.blocks:
        here = [state for state in block.states if state.place is Place.DEVICE]
        cached = [state for state in here if state.per_token]
        if cached:
            window = float(np.max(cached[0].window))
            width = sum(one.per_token * one.dtype.bytes for one in cached)
            if widths.setdefault(window, width) != width:
                return "layers of one window store keys and values of different widths"
            layers[window] = layers.get(window, 0.0) + block.repeats
            latent = latent or any(one.name == "latent_cache" for one in cached)
        if state := sum(one.per_sequence * one.dtype.bytes for one in here):
            states.append(state)
            recurrent += block.repeats
    if not widths:
        return "no layer stores keys and values of every token"
    widest = max(widths.values())
    if any(widest % width for width in widths.values()):
        return "widths of keys and values do not divide each other, and the engine has no common block for them"
    counts = [*layers.values(), *([recurrent] if recurrent else [])]
    fewest, most = min(counts), max(counts)
    size = most if most < fewest * SIMILAR else fewest
    least = LATENT_BLOCK_TOKENS if latent else BLOCK_TOKENS
    return CacheBlocks(
        layers=size,
        groups={window: float(np.ceil(count / size)) for window, count in layers.items()},
        token_bytes=widest,
        tokens=least * max(1.0, float(np.ceil(max(states) / (least * widest)))),
        longer={window: widest / width for window, width in widths.items() if width < widest},
        state_groups=float(np.ceil(recurrent / size)),
    )


def _compressed_blocks(graph: Graph) -> CacheBlocks:
    """The layout of DeepSeek-V4: compressed entries and index keys of all layers in one group, the last entries and the
    compressors' states in groups of their own, and room in every block for a page of each size.

    A group of windows has so few layers that it fits the rooms of the compressed ones, or one more.
    """
    layers: dict[float, float] = {}
    windowed, window, width, has_index = 0.0, 0.0, 1.0, False
    for block in graph.blocks:
        values = {state.name: float(np.max(state.per_token)) for state in block.states}
        has_index = has_index or INDEX_CACHE in values
        for state in block.states:
            if state.name == "latent_cache":
                windowed, window, width = windowed + block.repeats, float(np.max(state.window)), values[state.name]
        if COMPRESSED in values:
            layers[values[COMPRESSED]] = layers.get(values[COMPRESSED], 0.0) + block.repeats
    entries = {WINDOW_TOKENS, *(COMPRESSED_TOKENS * values / width for values in layers)}
    pages = {_page(count * ENTRY_BYTES) for count in entries}
    pages |= {_page(WINDOW_TOKENS * INDEX_BYTES)} if has_index else set()
    groups = float(np.ceil(windowed / (max(layers.values()) + 1.0)))
    compressors = (COMPRESSORS[values] for values in layers if values in COMPRESSORS)
    return CacheBlocks(
        layers=max(*layers.values(), float(np.ceil(windowed / groups))),
        groups={np.inf: 1.0},
        token_bytes=sum(pages) / COMPRESSED_TOKENS,
        tokens=COMPRESSED_TOKENS,
        states=(
            States(window=window, groups=groups, tokens=WINDOW_TOKENS),
            *(States(window=last, groups=1.0, tokens=tokens) for last, tokens in compressors),
        ),
    )


def _page(size: float) -> float:
    """Bytes of an aligned page."""
    return float(np.ceil(size / PAGE_ALIGNMENT) * PAGE_ALIGNMENT)


def running_of(model: Model, system: System, requested: Request, token_budget: float) -> tuple[Request, Running | None]:
    """Sequences that run concurrently, of all replicas and of each."""
    requested = system.batching.padded(requested)
    running = system.batching.admit(system.parallelism.replica(requested), replica_of(model, system, token_budget))
    if running is None:
        return requested, None
    return _of_replicas(system, running), running


def stored_request(system: System, request: Request, running: Running | None) -> Request:
    """The sequences whose caches are stored at once; those that start one by one with the output that the engine
    reserves for each."""
    if running is None:
        return system.batching.padded(request)
    return with_reserved_output(system, _of_replicas(system, running))


def _of_replicas(system: System, running: Running) -> Request:
    """The sequences that run concurrently on all replicas."""
    return replace(running.request, batch_size=running.request.batch_size * system.parallelism.data)


def one_per_chip(request: Request, system: System) -> Request:
    """A request for each hypothetical chip, where the system's figures are arrays."""
    chips = system.chip.points
    if 1 < (points := max(map(np.size, (request.batch_size, request.input_len, request.output_len)))) != chips > 1:
        raise UserError(f"sequences of one length are needed: the chip's figures have {chips}, the request {points}")
    return request if chips == 1 else replace(request, batch_size=request.batch_size * np.ones(chips))


def replica_of(model: Model, system: System, token_budget: float) -> Replica:
    """One replica of the system with its model.  token_budget: most tokens of one prefill pass."""
    return Replica(
        max_sequences=partial(concurrent_sequences, model, system),
        prompt_bytes=partial(_prompt_bytes, model, system),
        new_tokens=lambda request: request.input_len - system.kv_cache.prefix_hit(request.input_len),
        token_budget=token_budget,
        step_tokens=step_tokens(system, token_budget),
        microbatches=system.parallelism.microbatches,
        verified_tokens=system.generation.shape.new_tokens,
        tokens_per_round=system.generation.tokens,
        scheduler=SCHEDULERS[system.engine.scheduler or USUAL],
        mixes=not (system.generation.counts_passes or (system.scheme is not None and system.scheme.alone)),
    )


def step_tokens(system: System, token_budget: float) -> float:
    """Most tokens of a step, which runs as several passes where it has more than a pass.

    token_budget: most tokens of a pass.
    """
    if system.batching.name in ("static", "chunked"):  # steps are passes, whatever the engine's
        return token_budget
    own = system.engine.logical_batch
    return max(token_budget, SCHEDULERS[system.engine.scheduler or USUAL].logical_batch if own is None else own)


def _prompt_bytes(model: Model, system: System, request: Request) -> Count:
    """KV cache of one prompt on each device, of the model and its draft models, without pages, reservations or room
    for draft tokens [byte]."""
    single = 0.0 * request.batch_size + 1.0
    prompt = replace(request, batch_size=single, output_len=single)
    return memory_of(model, system.one_replica().prefilling(), prompt).kv_cache_used_bytes


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
    cache = resolved_reservation(model, system.kv_cache, graph)
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
        utilization_bytes=capacity * system.memory_utilization - system.margin_bytes,
        cache_fraction=system.cache_fraction,
    )
    if system.engine.free_memory is not None and system.engine.free_memory.buffers:
        here = as_ggml_counts(here, model, system, graph, request)
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
    offloaded[Place.HOST] = offloaded[Place.HOST] - here.parts.get(TABLE_ON_HOST, 0.0)
    return replace(
        here, host_bytes=offloaded[Place.HOST], disk_bytes=offloaded[Place.DISK], host_capacity_bytes=capacity
    )


def _with_draft_tokens(request: Request, generation: Generation) -> Request:
    """The request with the cache that draft tokens need beyond prompt and output; branches need it each."""
    if generation is AUTOREGRESSIVE or generation.branches is not None:
        return request
    return replace(request, output_len=request.output_len + generation.spare_tokens)


def resolved_reservation(model: Model, cache: KvCache, graph: Graph) -> KvCache:
    """The cache with the model's maximum context where `--kv-reserve max` asks for it."""
    if cache.reserve != np.inf:
        return cache
    if model.max_context >= ABSENT_CONTEXT and any(state.per_token for block in graph.blocks for state in block.states):
        raise UserError(f"--kv-reserve max: {model.name} states no maximum context; give a number of tokens")
    return replace(cache, reserve=model.max_context)


@frozen(eq=False)
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


def memory_of_devices(
    model: Model, system: System, request: Request, token_budget: Count = np.inf
) -> tuple[tuple[Device, Memory], ...]:
    """Memory of a request on each device of a split that holds a part of the model."""
    assert system.split is not None
    plan = largest_passes_of(model, system, request, token_budget)
    devices = devices_of(model.graph(plan.step), system.split)
    return tuple((one, memory_of_passes(model, one.system, request, plan, one.graph)) for one in devices)


def memory_of(model: Model, system: System, request: Request, token_budget: Count = np.inf) -> Memory:
    """Memory of a request without timing any operator, draft models included.

    Of a split, that of the device with the least room.
    """
    if system.split is not None:
        padded = system.batching.padded(request)
        return Memory.tightest([held for _, held in memory_of_devices(model, system, padded, token_budget)])
    return memory_and_graph(model, system, request, token_budget)[0]


def memory_and_graph(
    model: Model, system: System, request: Request, token_budget: Count = np.inf
) -> tuple[Memory, Graph]:
    """Memory of a request on one device, draft models included, and the graph of the model itself there."""
    request = system.batching.padded(request)
    stored, found = _memory_and_graph(model, system, request, token_budget)
    for drafter in system.drafters if stores_drafts(model, system) else ():
        own, graph = _memory_and_graph(drafter.draft.model, drafter.system, request, token_budget)
        stored = stored.beside(extra_memory_of_draft(drafter.draft, own, graph))
    return stored, found


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
    most = _max_concurrent(system, request)
    system = system.one_replica().unallocated()
    single = 0.0 * request.batch_size + 1.0
    tokens = np.where(np.isinf(token_budget), 0.0, token_budget)
    prompts = np.maximum(np.floor(tokens / request.input_len), single)
    reserved = with_reserved_output(system, request)
    one, two, full = (
        memory_of(model, system, replace(reserved, batch_size=count * single), token_budget)
        for count in (1.0, 2.0, prompts)
    )
    each = np.maximum(two.kv_cache_bytes - one.kv_cache_bytes, 1.0)
    count: Count = np.clip(np.floor(full.kv_cache_budget_bytes / each), 1.0, most)
    return count


def _max_concurrent(system: System, request: Request) -> Count:
    """Requests whose sequences the engine runs concurrently, in the cache that it allocates at start-up if any.

    Each branch counts as one sequence.
    """
    branches, allocated = system.generation.branches, system.engine.allocated_tokens
    if allocated and system.batching is not STATIC:
        held = np.maximum(np.floor(allocated / (request.input_len + request.output_len)), 1.0)
        return np.minimum(held, system.engine.max_num_seqs)
    if branches is None:
        return system.engine.max_num_seqs
    return np.maximum(
        np.floor(system.engine.max_num_seqs / branches.final_cache(request.input_len, request.output_len)[0]), 1.0
    )


def admitted(model: Model, system: System, request: Request, token_budget: float = np.inf) -> Request:
    """The request with no more sequences than the caches of all replicas store at once."""
    count = concurrent_sequences(model, system, request, token_budget) * system.parallelism.data
    return replace(request, batch_size=np.minimum(request.batch_size, count))
