"""Memory of one device: weights, KV cache, peak activations, framework."""

from __future__ import annotations

from collections.abc import Collection, Iterator, KeysView, Mapping, Sequence
from dataclasses import field, fields, replace

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Graph, Operator, Place, Role
from llmviewer.core.kinds import Kind
from llmviewer.serving.kv_cache import DEFAULT_KV_CACHE, KvCache


@frozen(eq=False)
class Memory:
    """Bytes on one device for one workload.

    kv_cache_used_bytes: the part of the cache that holds tokens; the rest is allocated and empty.
    utilization_bytes: the budget as a fraction of the capacity.  cache_fraction: if set, the fraction of the memory
    left by all else that the cache may use instead.
    cuda_graphs_bytes: CUDA graphs within the budget.  parts: name -> bytes that the others contain.
    host_bytes, disk_bytes: offloaded tensors.  host_capacity_bytes: the device's share of the host's memory.
    """

    weights_bytes: Count
    kv_cache_bytes: Count
    kv_cache_used_bytes: Count
    activations_bytes: Count
    framework_bytes: Count
    capacity_bytes: Count
    utilization_bytes: Count
    cache_fraction: float | None = None
    cuda_graphs_bytes: Count = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    host_bytes: Count = 0.0
    disk_bytes: Count = 0.0
    host_capacity_bytes: float = np.inf

    @property
    def total_bytes(self) -> Count:
        """Resident bytes at the worst moment."""
        return self.kv_cache_bytes + self._others

    @property
    def _others(self) -> Count:
        """Bytes of all but the KV cache."""
        return self.weights_bytes + self.activations_bytes + self.framework_bytes + self.cuda_graphs_bytes

    def beside(self, other: Memory) -> Memory:
        """Memory together with another model on the same device; the two run one after another."""
        return replace(
            self,
            weights_bytes=self.weights_bytes + other.weights_bytes,
            kv_cache_bytes=self.kv_cache_bytes + other.kv_cache_bytes,
            kv_cache_used_bytes=self.kv_cache_used_bytes + other.kv_cache_used_bytes,
            activations_bytes=np.maximum(self.activations_bytes, other.activations_bytes),
            host_bytes=self.host_bytes + other.host_bytes,
            disk_bytes=self.disk_bytes + other.disk_bytes,
        )

    @staticmethod
    def tightest(memories: Sequence[Memory]) -> Memory:
        """Memory of the device that has the least room, at every point; the host stores what all of them offload."""
        offloaded = total(one.host_bytes for one in memories)
        of_device = [replace(one, host_bytes=offloaded) for one in memories]
        least = np.argmin(np.stack(np.broadcast_arrays(*(one.room_bytes for one in of_device))), axis=0)
        if np.all(least == least.flat[0]):
            return of_device[int(least.flat[0])]
        alike = ("parts", "cache_fraction", "host_capacity_bytes")
        names = [entry.name for entry in fields(of_device[0]) if entry.name not in alike]
        figures = {name: np.choose(least, [getattr(one, name) for one in of_device]) for name in names}
        return replace(of_device[0], **figures)

    def at(self, points: slice) -> Memory:
        """The memory of some of the points."""
        figures = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return Memory(**{name: f[points] if np.size(f) > 1 else f for name, f in figures.items()})

    @property
    def budget_bytes(self) -> Count:
        """Bytes of the capacity that the engine may use."""
        if self.cache_fraction is None:
            return self.utilization_bytes
        return self._others + (self.capacity_bytes - self._others) * self.cache_fraction

    @property
    def kv_cache_waste_bytes(self) -> Count:
        """Allocated cache that holds no token: ends of pages and unused reservations."""
        return self.kv_cache_bytes - self.kv_cache_used_bytes

    @property
    def kv_cache_budget_bytes(self) -> Count:
        """Bytes that the budget leaves to the KV cache."""
        return self.left_by_others(self.budget_bytes)

    def left_by_others(self, budget: Count) -> Count:
        """Bytes of a budget that weights, activations and framework leave."""
        return np.maximum(budget - self._others, 0.0)

    @property
    def room_bytes(self) -> Count:
        """Bytes free in the budget or, if fewer, in the host's memory; negative where they do not suffice."""
        here = self.budget_bytes - self.total_bytes
        unlimited = self.host_capacity_bytes == np.inf
        return here if unlimited else np.minimum(here, self.host_capacity_bytes - self.host_bytes)

    @property
    def fits(self) -> Count:
        """1.0 where the total fits the budget and offloaded tensors fit the host's memory."""
        return np.where(self.room_bytes >= 0.0, 1.0, 0.0)

    @property
    def fits_host(self) -> Count:
        """1.0 where offloaded tensors fit the host's memory."""
        return np.where(self.host_bytes <= self.host_capacity_bytes, 1.0, 0.0)


def weights_bytes(graph: Graph, shared: Collection[str] | None = (), place: Place = Place.DEVICE) -> float:
    """Bytes of the weights stored at `place`, scales included, a tied table once.

    shared: names of weights that another model already stores; None: all of them.
    """
    if shared is None:
        return 0.0
    stored = (
        (tensor, times)
        for tensor, times in graph.stored_weights()
        if tensor.place is place and tensor.name not in shared
    )
    return float(sum(tensor.elements * tensor.dtype.bytes * times for tensor, times in stored))


def cache_bytes(graph: Graph, context: Count) -> Count:
    """Bytes of keys, values, latents and recurrent state of one sequence of `context` tokens."""
    return shares_of_cache(graph, DEFAULT_KV_CACHE, context, 0.0)[0]


def has_untied_head(graph: Graph) -> bool:
    """Whether the head has its own matrix instead of the embedding table."""
    weights = {block.name: set(block.weights()) for block in graph.blocks if not block.is_layer}
    return not weights.get("embedding", set()) & weights.get("head", set())


def layers_on_host(graph: Graph) -> dict[str, int]:
    """Layers that the host computes whole and in part, of all; a block with another's scope is the same layers again.

    A layer that it only stores counts as neither.
    """
    found = {"whole": 0, "part": 0, "all": 0}
    for block in graph.blocks:
        if block.is_layer and block.scope in ("", block.name):
            hosted = [operator.runs_on is Place.HOST for operator in block.operators]
            found["all"] += block.repeats
            found["whole"] += block.repeats * all(hosted)
            found["part"] += block.repeats * (any(hosted) and not all(hosted))
    return found


def has_input_states(graph: Graph) -> bool:
    """Whether a graph stores keys and values of an encoder's input."""
    return any(state.of_input for block in graph.blocks for state in block.states)


def with_states(graph: Graph, *, of_input: bool) -> Graph:
    """The graph with the states of an encoder's input alone, or with all others alone."""
    return graph.map_blocks(
        lambda block: replace(block, states=tuple(state for state in block.states if state.of_input is of_input))
    )


def shares_of_cache(
    graph: Graph, kept: KvCache, context: Count, prefix: Count, place: Place = Place.DEVICE, spare: Count = 0.0
) -> tuple[Count, Count]:
    """Bytes of the cache of one sequence of `context` tokens, and of the prefix that all sequences share.

    spare: extra recurrent states per sequence, one for every token that may be rejected.
    """
    own: Count = 0.0
    shared: Count = 0.0
    for block in graph.blocks:
        for state in block.states:
            if state.place is not place:
                continue
            one, all_of_them = kept.resident_bytes(state, context, prefix)
            own = own + (one + spare * (state.per_sequence * state.dtype.bytes)) * block.repeats
            shared = shared + all_of_them * block.repeats
    return own, shared


def hidden_states(graph: Graph, place: Place) -> Count:
    """Bytes of activations that copies store on the host or its disk, one layer at a time."""
    most: Count = 0.0
    for block in graph.blocks:
        copies = (op for op in block.operators if op.kind is Kind.COPY)
        written = (a for op in copies for a in op.writes if a.tensor.role is Role.ACTIVATION)
        most = np.maximum(
            most, total(a.tensor.elements * a.tensor.dtype.bytes for a in written if a.tensor.place is place)
        )
    return most


def peak_activations(graph: Graph) -> Count:
    """Largest number of activation bytes alive at any operator.

    Alive are its inputs and outputs (nothing in place) and tensors that a later operator of the block reads; inputs of
    the block from its start.  Keys and values belong to the cache.
    """
    peak: Count = 0.0
    for block in graph.blocks:
        peak = np.maximum(peak, _peak_of(block))
    return peak


def _peak_of(block: Block) -> Count:
    """Peak of a block; points that run different operators are evaluated group by group."""
    if all(isinstance(op.where, float) for op in block.operators):
        return _peak(block.operators)
    runs = np.stack(np.broadcast_arrays(*(np.atleast_1d(op.where) > 0.0 for op in block.operators)))
    kinds, kind = np.unique(runs, axis=1, return_inverse=True)
    peak: Count = 0.0
    for at in range(kinds.shape[1]):
        running = tuple(op for op, on in zip(block.operators, kinds[:, at], strict=True) if on)
        peak = np.where(kind.reshape(-1) == at, _peak(running), peak)
    return peak


def _peak(operators: tuple[Operator, ...]) -> Count:
    read = [_activations_read(operator) for operator in operators]
    last_use = {name: at for at, names in enumerate(read) for name in names}
    sizes: dict[str, Count] = {}
    live: Count = 0.0
    peak: Count = 0.0
    for at, operator in enumerate(operators):
        if not read[at] <= sizes.keys():
            for size in _new(operator.reads, sizes):  # an input of the block, alive so far
                live, peak = live + size, peak + size
        for size in _new(operator.writes, sizes):
            live = live + size
        peak = np.maximum(peak, live)
        for name in read[at]:
            if last_use[name] == at:
                live = live - sizes.pop(name)
    return peak


def _new(accesses: tuple[Access, ...], sizes: dict[str, Count]) -> Iterator[Count]:
    """Bytes of the activations that are not in `sizes` yet, which it adds."""
    for access in accesses:
        tensor = access.tensor
        here = tensor.role is Role.ACTIVATION and tensor.place is Place.DEVICE
        if here and tensor.name not in sizes:
            sizes[tensor.name] = size = tensor.elements * (tensor.dtype.bits / 8.0)
            yield size


def _activations_read(operator: Operator) -> KeysView[str]:
    """Names in the order in which they are read, so that the same sizes are added in every process."""
    here, role = Place.DEVICE, Role.ACTIVATION
    return {a.tensor.name: None for a in operator.reads if a.tensor.role is role and a.tensor.place is here}.keys()
