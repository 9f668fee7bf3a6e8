"""Offloaded tensors that come to the device whenever a layer needs them: weights, keys and values, hidden states."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from llmviewer.ir import Access, Block, Count, Graph, Operator, Pass, Place, Role, State, Tensor, whole
from llmviewer.ops.transfer import Direction, TransferShape, load, store
from llmviewer.pipeline import layer_numbers

#: Where tensors go, as their names say.
ENDINGS = {Place.HOST: ".on_host", Place.DISK: ".on_disk"}
#: Ends the names of kinds of layers whose weights are offloaded where others' are not.
OFFLOADED = " offloaded"
#: The residual stream that a layer receives.
HIDDEN = "hidden"


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """Shares of a sort of tensor that lie on the host and on its disk; the rest stays on the device."""

    host: float = 0.0
    disk: float = 0.0

    @property
    def share(self) -> float:
        """All that is not on the device."""
        return self.host + self.disk

    @property
    def whole(self) -> Away:
        """All of it, to the same places."""
        return Away(host=self.host / self.share, disk=self.disk / self.share)

    def places(self) -> Iterator[tuple[Place, float]]:
        """Where anything is, and how much of it."""
        yield from ((p, share) for p, share in ((Place.HOST, self.host), (Place.DISK, self.disk)) if share)

    def __str__(self) -> str:
        parts = ((f"{self.host:.4g}", "host"), (f"{self.disk:.4g}", "disk"))
        return " + ".join(f"{share} {place}" for share, place in parts if share != "0") or "0"


#: Nothing lies elsewhere.
STAYS = Away()


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

    weights: Away = STAYS
    kv: Away = STAYS
    activations: Away = STAYS
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
            if not block.scope:
                here = brought is not streams and block.name not in away
                return _streamed(block, without if here else brought, cached)
            if block.name == "head" and streams.head and streams.weights.share == 1.0 and own_table(graph):
                return _streamed(block, replace(streams, activations=STAYS), ())
            return block

        return graph.map_blocks(of)

    return change


def split_layers(graph: Graph, share: float, ending: str) -> tuple[Graph, tuple[str, ...]]:
    """The graph with the first ceil(share x layers) layers in blocks of their own, and the names of these.

    llama.cpp offloads whole layers so: --n-gpu-layers counts from the last.
    """
    layers = [block for block in graph.blocks if not block.scope]
    first = math.ceil(share * sum(block.times for block in layers) - 1e-9)
    numbers = dict(zip((block.name for block in layers), layer_numbers(layers), strict=True))
    away: list[Block] = []
    here: list[Block] = []
    for block in layers:
        gone, kept = ([n for n in numbers[block.name] if (n < first) is there] for there in (True, False))
        away += [replace(block, name=block.name + ending, times=len(gone), numbers=tuple(gone))] if gone else []
        here += [replace(block, times=len(kept), numbers=tuple(kept))] if kept else []
    where = graph.blocks.index(layers[0])
    ends = [block for block in graph.blocks[where:] if block.scope]
    return Graph(blocks=(*graph.blocks[:where], *away, *here, *ends)), tuple(block.name for block in away)


def own_table(graph: Graph) -> bool:
    """Whether the head reads a matrix of its own, not the embedding's table."""
    weights = {block.name: set(block.weights()) for block in graph.blocks if block.scope}
    return not weights.get("embedding", set()) & weights.get("head", set())


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


def dealt(states: tuple[State, ...], away: Away) -> tuple[State, ...]:
    """What a layer keeps of every token, dealt to its places."""
    if not away.share:
        return states
    found: list[State] = []
    for state in states:
        if not state.per_token:
            found.append(state)
            continue
        shares = {Place.DEVICE: 1.0 - away.share, **dict(away.places())}
        found += (
            replace(state, per_token=state.per_token * share, per_sequence=state.per_sequence * share, place=place)
            for place, share in shares.items()
        )
    return tuple(found)


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
            known = needed.get(tensor.name)
            needed[tensor.name] = (
                access if known is None else Access(tensor, np.maximum(known.elements, access.elements))
            )
            reads.append(Access(replace(tensor, elements=tensor.elements * (1.0 - away.share)), access.elements))
        operators.append(replace(operator, reads=tuple(reads)))
    return tuple(operators), _loads("load_weights", list(needed.values()), streams, away)


def cache_moved(block: Block, cached: Collection[str]) -> tuple[list[Access], list[Access]]:
    """Of the cache what a layer reads that was there before, and what it adds."""
    read: dict[str, Access] = {}
    made: dict[str, Access] = {}
    for operator in block.operators:
        own: set[str] = set()  # of several accesses the first is the cache's, others are reads again of the same keys
        for access in operator.reads:
            name = access.tensor.name
            if name in cached and access.tensor.role is Role.CACHE and name not in own:
                own.add(name)
                known = read.get(name)
                read[name] = _largest(known, access)
        for access in operator.writes:
            if access.tensor.name in cached:
                known = made.get(access.tensor.name)
                made[access.tensor.name] = _largest(known, access)
    old = [_less(access, made[name].elements if name in made else 0.0) for name, access in read.items()]
    return old, list(made.values())


def _largest(known: Access | None, access: Access) -> Access:
    return access if known is None else Access(access.tensor, np.maximum(known.elements, access.elements))


def _less(access: Access, elements: Count) -> Access:
    return Access(access.tensor, np.maximum(access.elements - elements, 0.0))


def _loads(name: str, needed: list[Access], streams: Streams, away: Away) -> list[Operator]:
    if not needed:
        return []
    stored = [part for access in needed for part in _parts(access, away)]
    return [load(name, stored, streams.shape(Direction.IN), streams.buffers)]


def _stores(name: str, made: list[Access], streams: Streams, away: Away) -> list[Operator]:
    if not made:
        return []
    parts = [part for access in made for part in _parts(access, away)]
    return [store(name, parts, streams.shape(Direction.OUT))]


def _parts(access: Access, away: Away) -> Iterator[Access]:
    """The shares of an access that lie elsewhere."""
    for place, share in away.places():
        yield Access(elsewhere(access.tensor, place, share), access.elements * share)


def elsewhere(tensor: Tensor, place: Place, share: Count = 1.0) -> Tensor:
    """A share of a tensor at another place, under a name that says so."""
    name = tensor.name + ENDINGS[place] if tensor.role is Role.WEIGHT else tensor.name
    return Tensor(name=name, elements=tensor.elements * share, dtype=tensor.dtype, role=tensor.role, place=place)
