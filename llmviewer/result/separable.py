"""Whether two values differ by more than the errors that their runs do not share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from llmviewer.core.counts import Array

#: Source of error -> the share of a time that it makes up, by point.
Sources = Mapping[str, Array]


def in_common(one: Sources, other: Sources) -> Array | float:
    """The share of both times whose error has the same source: 0 for other kernels or another chip, 1 for the same."""
    return sum((np.minimum(one[name], other[name]) for name in one.keys() & other.keys()), 0.0)


def overlap(one: Array, other: Array, common: Array | float = 0.0) -> Array:
    """Whether intervals meet, without the part of the errors that both share.

    one, other: lower end, value and upper end, shape (3, ...).  common: of `in_common`.  Errors of independent sources
    add in squares, and of a common source the smaller of both errors is in the larger one: it is taken from both.
    """
    errors = [np.abs(bounds[[0, 2]] / bounds[1] - 1.0) for bounds in (one, other)]
    shared = common * np.minimum(*errors) ** 2
    (low, high), (other_low, other_high) = (np.sqrt(np.maximum(each**2 - shared, 0.0)) for each in errors)
    meet: Array = (one[1] * (1.0 - low) <= other[1] * (1.0 + other_high)) & (
        other[1] * (1.0 - other_low) <= one[1] * (1.0 + high)
    )
    return meet
