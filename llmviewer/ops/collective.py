"""Collectives: the bytes that each device sends over its links, and reads and writes in memory."""

from __future__ import annotations

from enum import Enum

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Place, Role, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.ops.gemm import is_routed


class Collective(Enum):
    """The communication pattern."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"


#: Beginnings of the names of exchanges with the experts of all replicas, whatever their pattern.
DISPATCH, COMBINE = "dispatch_", "combine_"


@frozen
class CollectiveAlgorithm:
    """An algorithm of a collective.

    steps: messages one after another.  link, network: bytes that a device sends over its link and over the network, per
    byte of the whole tensor.
    """

    name: str
    steps: float
    link: float
    network: float = 0.0


@frozen(eq=False)
class CollectiveShape:
    """`devices` devices exchange a tensor of `size_bytes` (the whole tensor, not one device's part).

    near: devices that one link joins; messages between such groups use the network.  through_host: whether messages
    pass through the host's memory, for lack of peer-to-peer access.
    """

    pattern: Collective
    devices: float
    size_bytes: Count
    near: float = np.inf
    through_host: bool = False

    def algorithms(self) -> tuple[CollectiveAlgorithm, ...]:
        """The algorithms of the pattern; the first one sends the fewest bytes.

        With m groups of g = n/m devices that share a link: reduce-scatter in each group, exchange between groups of
        each device's 1/g, all-gather in each group.  Messages and share of the bytes for m = 1: ring all-reduce 2(n-1)
        and 2(n-1)/n, tree 2 log2(n) and 2, one-shot 1 and n-1; all-gather and reduce-scatter n-1 and (n-1)/n;
        all-to-all n-1 and (n-1)/n of a device's 1/n; send 1 and 1.
        Source: NCCL, https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md; arXiv 1810.11112.
        """
        n = self.devices
        g, m = self._groups()
        if self.pattern is Collective.SEND:
            return (CollectiveAlgorithm(name="send", steps=1.0, link=float(m == 1), network=float(m > 1)),)
        if self.pattern is Collective.ALL_TO_ALL:
            return (CollectiveAlgorithm(name="direct", steps=n - 1.0, link=(g - 1.0) / n / n, network=(n - g) / n / n),)
        one_phase = CollectiveAlgorithm(name="ring", steps=n - 1.0, link=(g - 1.0) / g, network=(m - 1.0) / n)
        if self.pattern is not Collective.ALL_REDUCE:
            return (one_phase,)
        ring = CollectiveAlgorithm(
            name="ring", steps=2.0 * one_phase.steps, link=2.0 * one_phase.link, network=2.0 * one_phase.network
        )
        hops = 2.0 * float(np.log2(g) + np.log2(m))
        tree = CollectiveAlgorithm(name="tree", steps=hops, link=2.0 * float(g > 1), network=2.0 / g * float(m > 1))
        if m > 1:
            return ring, tree
        return ring, tree, CollectiveAlgorithm(name="one-shot", steps=1.0, link=n - 1.0)

    def direct(self) -> tuple[CollectiveAlgorithm, ...]:
        """Messages that are sent at once between any two devices of a group, and of one rank in any two groups.

        An all-reduce has two steps in a group, and one between groups in which a device sends its 1/g to m - 1 others;
        an all-gather or reduce-scatter has one of each.  Ports that lead to all others are known of `near` devices
        only.  Source: two-shot all-reduce, https://github.com/vllm-project/vllm, csrc/custom_all_reduce.cuh; Groq's
        nodes, https://openreview.net/forum?id=IZaXDwDtL1.
        """
        if self.near == np.inf or self.pattern in (Collective.SEND, Collective.ALL_TO_ALL):
            return ()
        (g, m), phases = self._groups(), 1.0 + (self.pattern is Collective.ALL_REDUCE)
        between = (m - 1.0) / (g if phases > 1.0 else self.devices)
        steps = phases * float(g > 1) + float(m > 1)
        return (CollectiveAlgorithm(name="direct", steps=steps, link=phases * (g - 1.0) / g, network=between),)

    def _groups(self) -> tuple[float, float]:
        """Devices of a group that share a link, and groups."""
        m = max(1.0, float(np.ceil(self.devices / self.near)))
        return self.devices / m, m


def collective(
    name: str, reads: tuple[Access, ...], writes: tuple[Access, ...], tokens: Count, shape: CollectiveShape
) -> Operator:
    """The collective on one device; a reduction adds (n-1)/n of the tensor on the vector units."""
    dtype, algorithm = reads[0].tensor.dtype, shape.algorithms()[0]
    size = shape.size_bytes / dtype.bytes
    sent = tuple(
        whole(Tensor(name=name, elements=size * share, dtype=dtype, role=Role.ACTIVATION, place=place))
        for place, share in ((Place.LINK, algorithm.link), (Place.NETWORK, algorithm.network))
        if share
    )
    reduces = shape.pattern in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
    return Operator(
        name=name,
        kind=Kind.COLLECTIVE,
        reads=reads,
        writes=(*writes, *sent),
        output_shape=(
            tokens,
            total(a.elements for a in writes) / np.maximum(tokens, 1.0),
        ),  # a chunk has no rows of logits
        vector_flops=size * ((shape.devices - 1.0) / shape.devices) if reduces else 0.0,
        shape=shape,
    )


def is_of_all_ranks(operator: Operator) -> bool:
    """Whether an operator works on the tokens of all replicas that share experts: routed rows, their exchange."""
    if isinstance(operator.shape, CollectiveShape):
        return operator.name.startswith((DISPATCH, COMBINE))
    return is_routed(operator) and operator.role is not OperatorRole.EXPERT_COMBINE
