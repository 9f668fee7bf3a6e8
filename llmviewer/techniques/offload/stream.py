"""Offloaded tensors that are copied to the device when a layer needs them: weights, keys and values, hidden states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from llmviewer.analysis.memory import has_untied_head
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Place, Role, Tensor, whole
from llmviewer.ops.transfer import Direction, TransferShape, load, store
from llmviewer.techniques.offload.places import (
    HIDDEN,
    ON_DEVICE,
    OffloadShares,
    cache_accesses,
    first_layers,
    larger_access,
    offloaded_tensor,
    split_layers,
    split_states,
)
from llmviewer.techniques.sparsity.neurons import union_share

#: Suffix of the names of blocks whose weights are offloaded when those of other layers are not.
OFFLOADED = " offloaded"


def all_weights(_: Operator) -> bool:
    """Select the weights of every operator."""
    return True


@frozen
class Streams:
    """Shares of every layer's tensors that are offloaded, and how they are copied.

    buffers: number of device buffers for the copies of a layer.  over_link: copies go over a link; if device and host
    share a memory, the disk fills it directly.  selects: operators whose weights are offloaded.  whole_layers: the
    share of the weights is that of the layers, the first ones; otherwise it is a share of every layer's weights.
    head: lm_head is offloaded too if all weights of the layers are.  batches: GPU batches that use one copy of the
    weights in turn; a pass is that of one of them.
    """

    weights: OffloadShares = ON_DEVICE
    kv: OffloadShares = ON_DEVICE
    activations: OffloadShares = ON_DEVICE
    buffers: float = 2.0
    over_link: bool = True
    selects: Callable[[Operator], bool] = all_weights
    whole_layers: bool = False
    head: bool = True
    batches: float = 1.0

    def shape(self, direction: Direction) -> TransferShape:
        """The shape of a copy in this direction."""
        return TransferShape(direction=direction, over_link=self.over_link)


def stream(streams: Streams) -> Pass:
    """Store the given shares of every layer's weights, cache and input on the host or its disk.

    A forward pass copies the tensors that a layer needs (of experts the distinct ones its tokens select) over the link
    into a buffer before the layer runs: load_weights, load_kv, load_hidden are the layer's first operators.  store_kv
    and store_hidden copy the new keys and values and the layer's output back; these need no copy in.  Reads from a disk
    go through the memory of the host.  Recurrent states, the embedding and a tied head stay on the device; an untied
    head is offloaded if all weights of the layers are.  Source: FlexGen, arXiv 2303.06865, section 4.
    """

    def change(graph: Graph) -> Graph:
        cached = {state.name for block in graph.blocks for state in block.states if state.per_token}
        without = replace(streams, weights=ON_DEVICE)
        if streams.batches > 1.0:
            graph = graph.map_blocks(lambda block: _beside_others(block, streams))
        streamed = streams
        if streams.whole_layers and streams.weights.share:
            graph, offloaded = split_layers(graph, first_layers(graph, streams.weights.share), OFFLOADED)
            streamed = replace(streams, weights=streams.weights.normalized)

        def change_block(block: Block) -> Block:
            if block.is_layer:
                stays = streamed is not streams and block.name not in offloaded
                return _streamed(block, without if stays else streamed, cached)
            if block.name == "head" and streams.head and streams.weights.share == 1.0 and has_untied_head(graph):
                return _streamed(block, replace(streams, activations=ON_DEVICE), ())
            return block

        return graph.map_blocks(change_block)

    return change


def _streamed(block: Block, streams: Streams, cached: Collection[str]) -> Block:
    operators, copies_in = _offload_weights(block, streams)
    out: list[Operator] = []
    if streams.kv.share:
        earlier, added = cache_accesses(block, cached)
        copies_in += _loads("load_kv", earlier, streams, streams.kv)
        out += _stores("store_kv", added, streams, streams.kv)
    if streams.activations.share:
        received = [whole(tensor) for tensor in _received(block)]
        copies_in += _loads("load_hidden", received, streams, streams.activations)
        out += _stores("store_hidden", received, streams, streams.activations)
    return replace(block, operators=(*copies_in, *operators, *out), states=split_states(block.states, streams.kv))


def _beside_others(block: Block, streams: Streams) -> Block:
    """The block with the hidden states of the other GPU batches, which are in memory while one computes."""
    first, *others = block.operators
    share = (streams.batches - 1.0) * (1.0 - streams.activations.share)
    waiting = tuple(
        Access(replace(tensor, name="hidden_of_others", elements=tensor.elements * share), 0.0)
        for tensor in _received(block)
    )
    return replace(block, operators=(replace(first, writes=(*first.writes, *waiting)), *others))


def _received(block: Block) -> list[Tensor]:
    """The residual stream that the block receives; none for an embedding."""
    return [a.tensor for op in block.operators for a in op.reads if a.tensor.name == HIDDEN][:1]


def _offload_weights(block: Block, streams: Streams) -> tuple[tuple[Operator, ...], list[Operator]]:
    """The operators with the weights that stay on the device, and the copy of the rest.

    Accesses are unchanged: a kernel reads the whole matrix in device memory, partly from the buffer.
    """
    shares = streams.weights
    if not shares.share:
        return block.operators, []
    needed: dict[str, Access] = {}
    operators = []
    for operator in block.operators:
        reads = []
        for access in operator.reads:
            tensor = access.tensor
            if tensor.role is not Role.WEIGHT or tensor.place is not Place.DEVICE or not streams.selects(operator):
                reads.append(access)
                continue
            needed[tensor.name] = larger_access(needed.get(tensor.name), access)
            reads.append(Access(replace(tensor, elements=tensor.elements * (1.0 - shares.share)), access.elements))
        operators.append(replace(operator, reads=tuple(reads)))
    batches = streams.batches
    accesses = [_per_batch(access, batches) for access in needed.values()]
    return tuple(operators), _loads(
        "load_weights", accesses, replace(streams, buffers=streams.buffers * batches), shares
    )


def _per_batch(access: Access, batches: float) -> Access:
    """The copy of weights that one of several GPU batches pays: its part of those that any of them needs.

    Expert weights that one of them needs are taken to be used by each with the same probability.
    """
    if batches == 1.0:
        return access
    stored = access.tensor.elements
    return Access(access.tensor, stored * (union_share(access.elements / stored, batches) / batches))


def _loads(name: str, needed: list[Access], streams: Streams, shares: OffloadShares) -> list[Operator]:
    if not needed:
        return []
    stored = [part for access in needed for part in _offloaded_parts(access, shares)]
    return [load(name, stored, streams.shape(Direction.IN), streams.buffers)]


def _stores(name: str, written: list[Access], streams: Streams, shares: OffloadShares) -> list[Operator]:
    if not written:
        return []
    parts = [part for access in written for part in _offloaded_parts(access, shares)]
    if name == "store_hidden":  # those of all GPU batches are stored at once
        parts = [Access(replace(a.tensor, elements=a.tensor.elements * streams.batches), a.elements) for a in parts]
    return [store(name, parts, streams.shape(Direction.OUT))]


def _offloaded_parts(access: Access, shares: OffloadShares) -> Iterator[Access]:
    """The parts of an access that go to the host and its disk."""
    for place, share in shares.places():
        yield Access(offloaded_tensor(access.tensor, place, share), access.elements * share)
