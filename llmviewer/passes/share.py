"""A share of an access, of an operator's work, of its output's shape."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.ir import Access, Count, Operator


def part(access: Access, share: Count) -> Access:
    """`share` of a tensor and of what is moved of it."""
    tensor = access.tensor
    return Access(replace(tensor, elements=tensor.elements * share), access.elements * share)


def scaled(operator: Operator, share: Count) -> Operator:
    """The operator with `share` of its work; what it reads and writes stays."""
    return replace(
        operator,
        matmul_flops=operator.matmul_flops * share,
        vector_flops=operator.vector_flops * share,
        recurrence_flops=operator.recurrence_flops * share,
        conv_flops=operator.conv_flops * share,
        special_ops=operator.special_ops * share,
        masked_flops=operator.masked_flops * share,
    )


def with_shape(operator: Operator, axis: int, share: Count) -> Operator:
    """The operator with `share` of one axis of its output."""
    shape = list(operator.output_shape)
    shape[axis] = shape[axis] * share
    return replace(operator, output_shape=tuple(shape))
