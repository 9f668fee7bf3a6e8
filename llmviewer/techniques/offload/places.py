"""Placement of offloaded tensors: shares of every layer or whole layers, and the accesses to an offloaded KV cache."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.core.counts import Count
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Graph, Place, Role, State, Tensor

#: Place -> suffix of the names of weights stored there.
NAME_SUFFIXES = {Place.HOST: ".on_host", Place.DISK: ".on_disk"}
#: The residual stream that a layer receives.
HIDDEN = "hidden"


@frozen
class OffloadShares:
    """Shares of one kind of tensor that are stored on the host and on its disk; the rest stays on the device."""

    host: float = 0.0
    disk: float = 0.0

    @property
    def share(self) -> float:
        """The share that is not on the device."""
        return self.host + self.disk

    @property
    def normalized(self) -> OffloadShares:
        """Shares in the same ratio with nothing on the device."""
        return OffloadShares(host=self.host / self.share, disk=self.disk / self.share)

    def places(self) -> Iterator[tuple[Place, float]]:
        """The places off the device with a share above 0, and their shares."""
        yield from ((p, share) for p, share in ((Place.HOST, self.host), (Place.DISK, self.disk)) if share)

    def __str__(self) -> str:
        parts = ((f"{self.host:.4g}", "host"), (f"{self.disk:.4g}", "disk"))
        return " + ".join(f"{share} {place}" for share, place in parts if share != "0") or "0"


#: Everything stays on the device.
ON_DEVICE = OffloadShares()


def offloaded_tensor(tensor: Tensor, place: Place, share: Count = 1.0) -> Tensor:
    """A share of a tensor at another place; weights there get a name suffix."""
    name = tensor.name + NAME_SUFFIXES[place] if tensor.role is Role.WEIGHT else tensor.name
    return Tensor(name=name, elements=tensor.elements * share, dtype=tensor.dtype, role=tensor.role, place=place)


def first_layers(graph: Graph, share: float) -> range:
    """The numbers of the first ceil(share x layers) layers."""
    count = sum(block.repeats for block in graph.blocks if block.is_layer)
    return range(math.ceil(share * count - 1e-9))


def split_layers(graph: Graph, chosen: Collection[int], ending: str) -> tuple[Graph, tuple[str, ...]]:
    """The graph with the chosen layers in separate blocks before the others, and the names of these blocks.

    ending: appended to the block names.
    """
    layers = [block for block in graph.blocks if block.is_layer]
    numbers = dict(zip((block.name for block in layers), layer_numbers(layers), strict=True))
    offloaded: list[Block] = []
    kept: list[Block] = []
    for block in layers:
        before, after = ([n for n in numbers[block.name] if (n in chosen) is early] for early in (True, False))
        if before:
            offloaded.append(replace(block, name=block.name + ending, repeats=len(before), numbers=tuple(before)))
        if after:
            kept.append(replace(block, repeats=len(after), numbers=tuple(after)))
    where = graph.blocks.index(layers[0])
    ends = [block for block in graph.blocks[where:] if not block.is_layer]
    return Graph(blocks=(*graph.blocks[:where], *offloaded, *kept, *ends)), tuple(block.name for block in offloaded)


def split_states(states: tuple[State, ...], shares: OffloadShares) -> tuple[State, ...]:
    """The states of a layer with the per-token states split between the device and the offload places."""
    if not shares.share:
        return states
    found: list[State] = []
    for state in states:
        if not state.per_token:
            found.append(state)
            continue
        by_place = {Place.DEVICE: 1.0 - shares.share, **dict(shares.places())}
        found += (
            replace(state, per_token=state.per_token * share, per_sequence=state.per_sequence * share, place=place)
            for place, share in by_place.items()
        )
    return tuple(found)


def cache_accesses(block: Block, cached: Collection[str]) -> tuple[list[Access], list[Access]]:
    """Accesses of a layer to earlier cache entries, and to the entries that it adds.  cached: names of cache states."""
    read: dict[str, Access] = {}
    written: dict[str, Access] = {}
    for operator in block.operators:
        seen: set[str] = set()  # only the first access of an operator counts: later ones read the same keys again
        for access in operator.reads:
            name = access.tensor.name
            if name in cached and access.tensor.role is Role.CACHE and name not in seen:
                seen.add(name)
                read[name] = larger_access(read.get(name), access)
        for access in operator.writes:
            if access.tensor.name in cached:
                name = access.tensor.name
                written[name] = larger_access(written.get(name), access)
    earlier = [_without(access, written[name].elements if name in written else 0.0) for name, access in read.items()]
    return earlier, list(written.values())


def larger_access(previous: Access | None, access: Access) -> Access:
    """The larger of two accesses to a tensor.  previous: None if `access` is the first."""
    return access if previous is None else Access(access.tensor, np.maximum(previous.elements, access.elements))


def _without(access: Access, elements: Count) -> Access:
    return Access(access.tensor, np.maximum(access.elements - elements, 0.0))
