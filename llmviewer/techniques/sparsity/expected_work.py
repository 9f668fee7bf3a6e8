"""The expected work of operators that run with some probability; what is stored stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmviewer.core.counts import Count, present
from llmviewer.core.ir import Access, Block, Operator
from llmviewer.ops.collective import CollectiveShape

#: Fields of Operator that count work.
WORK = ("matmul_flops", "vector_flops", "recurrence_flops", "conv_flops", "special_ops", "masked_flops")


def is_layer(block: Block) -> bool:
    """Whether the block is a kind of decoder layer, not the embedding, the head or what a pass has put beside them."""
    return not block.scope


def running(operator: Operator, probability: Count) -> Operator:
    """The operator with `probability` of its work and of what it moves."""
    work, shape = {name: getattr(operator, name) for name in WORK}, operator.shape
    if isinstance(shape, CollectiveShape):
        shape = replace(shape, size_bytes=shape.size_bytes * probability)
    return replace(
        operator,
        shape=shape,
        reads=tuple(Access(a.tensor, a.elements * probability) for a in operator.reads),
        writes=tuple(Access(a.tensor, a.elements * probability) for a in operator.writes),
        **{name: count * probability for name, count in work.items() if present(count)},
    )


def each(block: Block, change: Callable[[Operator], Operator]) -> Block:
    """The block with every operator changed."""
    return replace(block, operators=tuple(change(operator) for operator in block.operators))
