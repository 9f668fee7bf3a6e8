"""Scaling of accesses, of the work of operators and of their output shapes."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.counts import Count
from llmviewer.core.ir import Access, Operator


def scale_access(access: Access, share: Count) -> Access:
    """The access with tensor and moved elements times `share`."""
    tensor = access.tensor
    return Access(replace(tensor, elements=tensor.elements * share), access.elements * share)


def scale_work(operator: Operator, share: Count) -> Operator:
    """The operator with its work times `share` and unchanged tensors."""
    return operator.map_work(lambda count: count * share)


def scale_axis(operator: Operator, axis: int, share: Count) -> Operator:
    """The operator with one axis of its output shape times `share`."""
    shape = list(operator.output_shape)
    shape[axis] = shape[axis] * share
    return replace(operator, output_shape=tuple(shape))
