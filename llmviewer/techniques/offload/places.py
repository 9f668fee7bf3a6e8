"""Where the tensors of an offloaded model lie: shares of each layer's, or whole layers; and what of the cache moves."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.core.counts import Count
from llmviewer.core.ir import Access, Block, Graph, Place, Role, State, Tensor

#: Where tensors go, as their names say.
ENDINGS = {Place.HOST: ".on_host", Place.DISK: ".on_disk"}
#: The residual stream that a layer receives.
HIDDEN = "hidden"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadShares:
    """Shares of a sort of tensor that lie on the host and on its disk; the rest stays on the device."""

    host: float = 0.0
    disk: float = 0.0

    @property
    def share(self) -> float:
        """All that is not on the device."""
        return self.host + self.disk

    @property
    def whole(self) -> OffloadShares:
        """All of it, to the same places."""
        return OffloadShares(host=self.host / self.share, disk=self.disk / self.share)

    def places(self) -> Iterator[tuple[Place, float]]:
        """Where anything is, and how much of it."""
        yield from ((p, share) for p, share in ((Place.HOST, self.host), (Place.DISK, self.disk)) if share)

    def __str__(self) -> str:
        parts = ((f"{self.host:.4g}", "host"), (f"{self.disk:.4g}", "disk"))
        return " + ".join(f"{share} {place}" for share, place in parts if share != "0") or "0"


#: Nothing lies elsewhere.
STAYS = OffloadShares()


def elsewhere(tensor: Tensor, place: Place, share: Count = 1.0) -> Tensor:
    """A share of a tensor at another place, under a name that says so."""
    name = tensor.name + ENDINGS[place] if tensor.role is Role.WEIGHT else tensor.name
    return Tensor(name=name, elements=tensor.elements * share, dtype=tensor.dtype, role=tensor.role, place=place)


def split_layers(graph: Graph, share: float, ending: str) -> tuple[Graph, tuple[str, ...]]:
    """The graph with the first ceil(share x layers) layers in blocks of their own, and the names of these.

    llama.cpp offloads whole layers so: --n-gpu-layers counts from the last.
    """
    layers = [block for block in graph.blocks if block.is_layer]
    first = math.ceil(share * sum(block.repeats for block in layers) - 1e-9)
    numbers = dict(zip((block.name for block in layers), layer_numbers(layers), strict=True))
    away: list[Block] = []
    here: list[Block] = []
    for block in layers:
        gone, kept = ([n for n in numbers[block.name] if (n < first) is there] for there in (True, False))
        away += [replace(block, name=block.name + ending, repeats=len(gone), numbers=tuple(gone))] if gone else []
        here += [replace(block, repeats=len(kept), numbers=tuple(kept))] if kept else []
    where = graph.blocks.index(layers[0])
    ends = [block for block in graph.blocks[where:] if not block.is_layer]
    return Graph(blocks=(*graph.blocks[:where], *away, *here, *ends)), tuple(block.name for block in away)


def own_table(graph: Graph) -> bool:
    """Whether the head reads a matrix of its own, not the embedding's table."""
    weights = {block.name: set(block.weights()) for block in graph.blocks if not block.is_layer}
    return not weights.get("embedding", set()) & weights.get("head", set())


def dealt(states: tuple[State, ...], away: OffloadShares) -> tuple[State, ...]:
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
                read[name] = largest(known, access)
        for access in operator.writes:
            if access.tensor.name in cached:
                known = made.get(access.tensor.name)
                made[access.tensor.name] = largest(known, access)
    old = [_less(access, made[name].elements if name in made else 0.0) for name, access in read.items()]
    return old, list(made.values())


def largest(known: Access | None, access: Access) -> Access:
    """Of two accesses to a tensor the one that moves more; known: None before the first."""
    return access if known is None else Access(access.tensor, np.maximum(known.elements, access.elements))


def _less(access: Access, elements: Count) -> Access:
    return Access(access.tensor, np.maximum(access.elements - elements, 0.0))
