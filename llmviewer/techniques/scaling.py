"""Scaling of accesses, of the work of operators and of their output shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmviewer.core.counts import Count
from llmviewer.core.ir import Access, Block, Operator
from llmviewer.ops.collective import CollectiveShape


def scale_access(access: Access, share: Count) -> Access:
    """The access with tensor and moved elements times `share`."""
    return Access(access.tensor.sized(access.tensor.elements * share), access.elements * share)


def scale_moved(access: Access, share: Count) -> Access:
    """The access with moved elements times `share` and an unchanged tensor."""
    return Access(access.tensor, access.elements * share)


def scale_work(operator: Operator, share: Count) -> Operator:
    """The operator with its work times `share` and unchanged tensors."""
    return operator.map_work(lambda count: count * share)


def scale_axis(operator: Operator, axis: int, share: Count) -> Operator:
    """The operator with one axis of its output shape times `share`."""
    shape = list(operator.output_shape)
    shape[axis] = shape[axis] * share
    return operator.having(output_shape=tuple(shape))


def with_probability(operator: Operator, probability: Count) -> Operator:
    """The operator with its work and accesses times `probability`; stored tensors are unchanged."""
    shape = operator.shape
    if isinstance(shape, CollectiveShape):
        shape = replace(shape, size_bytes=shape.size_bytes * probability)
    return replace(
        scale_work(operator, probability),
        shape=shape,
        reads=tuple(scale_moved(a, probability) for a in operator.reads),
        writes=tuple(scale_moved(a, probability) for a in operator.writes),
    )


def sometimes(operator: Operator, probability: Count) -> Operator:
    """The operator of a step that runs it with `probability`: means of its counts, and the time of its runs.

    A kernel that runs takes its whole time; the smaller kernel of `with_probability` would take more than its share.
    """
    once = operator if operator.one_run is None else operator.one_run
    return replace(with_probability(operator, probability), one_run=once, runs=operator.runs * probability)


def map_operators(block: Block, change: Callable[[Operator], Operator]) -> Block:
    """The block with `change` applied to every operator."""
    return replace(block, operators=tuple(change(operator) for operator in block.operators))
