"""Whether two values differ by more than the errors that their runs do not share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from llmviewer.core.counts import Array

#: Source of error -> the share of a time that it makes up, by point.
Sources = Mapping[str, Array]


def in_common(one: Sources, other: Sources) -> Array | float:
    """The share of both times whose error has the same source: 0 for other kernels or another chip, 1 for the same."""
    return sum((np.minimum(one[name], other[name]) for name in one.keys() & other.keys()), 0.0)


def joined(parts: Sequence[Sources], shapes: Sequence[tuple[int, ...]]) -> Sources:
    """The sources of parts that follow each other along the first axis, of these shapes; 0 where a part lacks one."""
    names = dict.fromkeys(name for part in parts for name in part)
    pairs = list(zip(parts, shapes, strict=True))
    return {name: np.concatenate([part.get(name, np.zeros(shape)) for part, shape in pairs]) for name in names}


def own_errors(one: Array, other: Array, common: Array | float = 0.0) -> tuple[Array, Array]:
    """The errors of two values below and above them, without those that both share, over the values: shape (2, ...).

    one, other: lower end, value and upper end, shape (3, ...).  common: of `in_common`.  Errors of independent sources
    add in squares, and of a common source the smaller of both errors is in the larger one: it is taken from both.
    """
    errors = [np.abs(bounds[[0, 2]] / bounds[1] - 1.0) for bounds in (one, other)]
    shared = common * np.minimum(*errors) ** 2
    own, others = (np.sqrt(np.maximum(each**2 - shared, 0.0)) for each in errors)
    return own, others


def overlap(one: Array, other: Array, common: Array | float = 0.0) -> Array:
    """Whether two intervals meet, without the errors that both share.  Arguments are those of `own_errors`."""
    (low, high), (other_low, other_high) = own_errors(one, other, common)
    meet: Array = (one[1] * (1.0 - low) <= other[1] * (1.0 + other_high)) & (
        other[1] * (1.0 - other_low) <= one[1] * (1.0 + high)
    )
    return meet


def ratio(one: Array, other: Array, common: Array | float = 0.0) -> Array:
    """Lower end, value and upper end of one over the other, shape (3, ...).  Arguments are those of `own_errors`."""
    (low, high), (other_low, other_high) = own_errors(one, other, common)
    below, above = np.hypot(low, other_high), np.hypot(high, other_low)
    bounds: Array = one[1] / other[1] * np.stack([np.maximum(1.0 - below, 0.0), np.ones_like(low), 1.0 + above])
    return bounds
