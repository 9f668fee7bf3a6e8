"""One kernel to measure, as a plan lists it and a run times it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmviewer.core.frozen import frozen


@frozen
class KernelCase:
    """One row to measure: its table, its kernel in calibrate.kernels, and the columns that identify it.

    flops: FLOP of one call, used to skip kernels that take too long; 0 where that is irrelevant.
    """

    table: str
    kernel: str
    columns: Mapping[str, Any]
    flops: float = 0.0
