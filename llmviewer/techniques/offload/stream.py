"""Offloaded tensors that come to the device whenever a layer needs them: weights, keys and values, hidden states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Place, Role, whole
from llmviewer.ops.transfer import Direction, TransferShape, load, store
from llmviewer.techniques.offload.places import (
    HIDDEN,
    STAYS,
    OffloadShares,
    cache_moved,
    dealt,
    elsewhere,
    largest,
    own_table,
    split_layers,
)

#: Ends the names of kinds of layers whose weights are offloaded where others' are not.
OFFLOADED = " offloaded"


def every(_: Operator) -> bool:
    """All weights."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """What of every layer is elsewhere.

    buffers: rooms on the device for what a layer brings.  crosses: it comes over a link; a disk of a device that
    shares its memory with the host fills that memory at once.  of: which weights, by the operators that read them.
    whole_layers: the share of the weights is that of the layers, the first ones; else a share of every layer's.
    head: it goes too where all weights of the layers do.
    """

    weights: OffloadShares = STAYS
    kv: OffloadShares = STAYS
    activations: OffloadShares = STAYS
    buffers: float = 2.0
    crosses: bool = True
    of: Callable[[Operator], bool] = every
    whole_layers: bool = False
    head: bool = True

    def shape(self, direction: Direction) -> TransferShape:
        """A copy that way."""
        return TransferShape(direction=direction, crosses=self.crosses)


def stream(streams: Streams) -> Pass:
    """Of every layer's weights, cache and input the given shares lie on the host or its disk.

    A pass reads there what the layer needs of them (of experts the distinct ones that its tokens meet), copies it over
    the link into a buffer, and computes as ever: load_weights, load_kv, load_hidden stand at the head of the layer.
    store_kv and store_hidden take the new keys and values and the layer's output back; what the layer has just made
    needs no copy in.  What a disk holds passes through the memory of the host.  Recurrent states stay on the device,
    and so do the embedding and a head that shares its table; any other head goes with the layers where all of their
    weights do.  Source: FlexGen, arXiv 2303.06865, section 4.
    """

    def change(graph: Graph) -> Graph:
        cached = {state.name for block in graph.blocks for state in block.states if state.per_token}
        without = replace(streams, weights=STAYS)
        brought = streams
        if streams.whole_layers and streams.weights.share:
            graph, away = split_layers(graph, streams.weights.share, OFFLOADED)
            brought = replace(streams, weights=streams.weights.whole)

        def of(block: Block) -> Block:
            if block.is_layer:
                here = brought is not streams and block.name not in away
                return _streamed(block, without if here else brought, cached)
            if block.name == "head" and streams.head and streams.weights.share == 1.0 and own_table(graph):
                return _streamed(block, replace(streams, activations=STAYS), ())
            return block

        return graph.map_blocks(of)

    return change


def _streamed(block: Block, streams: Streams, cached: Collection[str]) -> Block:
    operators, copies_in = _weights_away(block, streams)
    out: list[Operator] = []
    if streams.kv.share:
        kept, made = cache_moved(block, cached)
        copies_in += _loads("load_kv", kept, streams, streams.kv)
        out += _stores("store_kv", made, streams, streams.kv)
    if streams.activations.share:
        received = [whole(a.tensor) for op in block.operators for a in op.reads if a.tensor.name == HIDDEN][:1]
        copies_in += _loads("load_hidden", received, streams, streams.activations)
        out += _stores("store_hidden", received, streams, streams.activations)
    return replace(block, operators=(*copies_in, *operators, *out), states=dealt(block.states, streams.kv))


def _weights_away(block: Block, streams: Streams) -> tuple[tuple[Operator, ...], list[Operator]]:
    """The operators with what stays, and the copy of the rest: what a kernel reads of a matrix it reads in the memory
    of the device, from where it is stored or from the buffer."""
    away = streams.weights
    if not away.share:
        return block.operators, []
    needed: dict[str, Access] = {}
    operators = []
    for operator in block.operators:
        reads = []
        for access in operator.reads:
            tensor = access.tensor
            if tensor.role is not Role.WEIGHT or tensor.place is not Place.DEVICE or not streams.of(operator):
                reads.append(access)
                continue
            needed[tensor.name] = largest(needed.get(tensor.name), access)
            reads.append(Access(replace(tensor, elements=tensor.elements * (1.0 - away.share)), access.elements))
        operators.append(replace(operator, reads=tuple(reads)))
    return tuple(operators), _loads("load_weights", list(needed.values()), streams, away)


def _loads(name: str, needed: list[Access], streams: Streams, away: OffloadShares) -> list[Operator]:
    if not needed:
        return []
    stored = [part for access in needed for part in _parts(access, away)]
    return [load(name, stored, streams.shape(Direction.IN), streams.buffers)]


def _stores(name: str, made: list[Access], streams: Streams, away: OffloadShares) -> list[Operator]:
    if not made:
        return []
    parts = [part for access in made for part in _parts(access, away)]
    return [store(name, parts, streams.shape(Direction.OUT))]


def _parts(access: Access, away: OffloadShares) -> Iterator[Access]:
    """The shares of an access that lie elsewhere."""
    for place, share in away.places():
        yield Access(elsewhere(access.tensor, place, share), access.elements * share)
