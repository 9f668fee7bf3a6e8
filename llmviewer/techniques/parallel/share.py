"""A share of an access, of an operator's work, of its output's shape."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.counts import Count
from llmviewer.core.ir import Access, Operator


def scale_access(access: Access, share: Count) -> Access:
    """`share` of a tensor and of what is moved of it."""
    tensor = access.tensor
    return Access(replace(tensor, elements=tensor.elements * share), access.elements * share)


def scale_work(operator: Operator, share: Count) -> Operator:
    """The operator with `share` of its work; its tensors stay."""
    return operator.map_work(lambda count: count * share)


def scale_axis(operator: Operator, axis: int, share: Count) -> Operator:
    """The operator with `share` of one axis of its output."""
    shape = list(operator.output_shape)
    shape[axis] = shape[axis] * share
    return replace(operator, output_shape=tuple(shape))
