"""Efficiency: operator x chip -> what rates the kernel attains, and a fixed time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from llmviewer.hardware import Chip
from llmviewer.ir import Count, Kind, Operator


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rates:
    """Attainable rates of one operator; None drops the resource (the figure is unknown).

    fixed_s: time per launch.  hop_s: latency of one message between devices.
    """

    matrix_flops_per_s: Count
    vector_flops_per_s: Count | None
    special_ops_per_s: Count | None
    memory_bytes_per_s: Count
    l2_bytes_per_s: Count | None
    link_bytes_per_s: Count | None = None
    network_bytes_per_s: Count | None = None
    hop_s: Count = 0.0
    fixed_s: Count = 0.0


Efficiency: TypeAlias = Callable[[Operator, Chip], Rates]


def ideal(operator: Operator, chip: Chip) -> Rates:
    """The data sheet: every efficiency 1, no fixed time.  A true bound."""
    return _data_sheet(chip, operator.compute if operator.kind in MATRIX_KINDS else "")


#: Kinds of operators that use the matrix units.
MATRIX_KINDS = (Kind.GEMM, Kind.ATTENTION)


@lru_cache(maxsize=64)
def _data_sheet(chip: Chip, compute: str) -> Rates:
    """The rates of a chip for one compute class; a chip never changes, so they are looked up once."""
    return Rates(
        matrix_flops_per_s=chip.matrix_rate(compute) if compute else 1.0,
        vector_flops_per_s=chip.vector_rate(),
        special_ops_per_s=chip.special_ops_per_s,
        memory_bytes_per_s=chip.bandwidth_bytes_per_s,
        l2_bytes_per_s=chip.l2_bandwidth_bytes_per_s,
        link_bytes_per_s=chip.link_rate,
        network_bytes_per_s=chip.network_rate,
    )
