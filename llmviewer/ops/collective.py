"""Communication between devices: what each device sends over its link, and what it reads and writes in memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from llmviewer.ir import Access, Count, Kind, Operator, Place, Role, Tensor, whole


class Collective(Enum):
    """The pattern of a collective."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveShape:
    """`devices` devices exchange a tensor of `size_bytes`: the whole tensor, not a device's part of it."""

    pattern: Collective
    devices: float
    size_bytes: Count


def sent_share(pattern: Collective, devices: float) -> float:
    """Bytes a device sends over its link, per byte of the whole tensor, by the cheapest algorithm without latency.

    All-reduce: ring 2(n-1)/n, tree 2, one-shot n-1: the ring never sends more.  All-gather, reduce-scatter and
    all-to-all: (n-1)/n of the whole, of which a device holds 1/n.  Send: the tensor itself.
    Source: NCCL, https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    if pattern is Collective.SEND:
        return 1.0
    if pattern is Collective.ALL_REDUCE:
        return min(2.0 * (devices - 1.0) / devices, 2.0, devices - 1.0)
    if pattern is Collective.ALL_TO_ALL:  # each device sends all but its own part of its 1/n
        return (devices - 1.0) / devices / devices
    return (devices - 1.0) / devices


def collective(name: str, x: Tensor, y: Tensor, tokens: Count, shape: CollectiveShape) -> Operator:
    """x on every device -> y on every device; reductions add (n-1)/n of the whole on the vector units."""
    sent = shape.size_bytes / x.dtype.bytes * sent_share(shape.pattern, shape.devices)
    link = Tensor(name=name, elements=sent, dtype=x.dtype, role=Role.ACTIVATION, place=Place.LINK)
    reduces = shape.pattern in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
    added = shape.size_bytes / x.dtype.bytes * ((shape.devices - 1.0) / shape.devices)
    return Operator(
        name=name,
        kind=Kind.COLLECTIVE,
        reads=(whole(x),),
        writes=(whole(y), Access(link, sent)),
        output_shape=(tokens, y.elements / tokens),
        vector_flops=added if reduces else 0.0,
        shape=shape,
    )
