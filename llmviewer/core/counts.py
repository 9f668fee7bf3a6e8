"""Counts: a float, or an array of float64 with one entry per point of a sweep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Count: TypeAlias = float | Array


def present(count: Count) -> bool:
    """Whether there is any work: false only for a plain zero, not for an array of zeros."""
    return isinstance(count, np.ndarray) or count != 0.0


def total(counts: Iterable[Count]) -> Count:
    """The sum from left to right; plain zeros are skipped, so they cost no array operation."""
    result: Count | None = None
    for count in counts:
        if isinstance(count, np.ndarray) or count != 0.0:
            result = count if result is None else result + count
    return 0.0 if result is None else result
