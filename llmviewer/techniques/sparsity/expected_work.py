"""Expected work of operators that run with some probability; stored tensors are unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmviewer.core.counts import Count
from llmviewer.core.ir import Access, Block, Operator
from llmviewer.ops.collective import CollectiveShape


def with_probability(operator: Operator, probability: Count) -> Operator:
    """The operator with its work and accesses times `probability`."""
    shape = operator.shape
    if isinstance(shape, CollectiveShape):
        shape = replace(shape, size_bytes=shape.size_bytes * probability)
    return replace(
        operator.map_work(lambda count: count * probability),
        shape=shape,
        reads=tuple(Access(a.tensor, a.elements * probability) for a in operator.reads),
        writes=tuple(Access(a.tensor, a.elements * probability) for a in operator.writes),
    )


def map_operators(block: Block, change: Callable[[Operator], Operator]) -> Block:
    """The block with `change` applied to every operator."""
    return replace(block, operators=tuple(change(operator) for operator in block.operators))
