"""Efficiency: operator x chip -> what rates the kernel attains, and a fixed time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Kind, Operator
from llmviewer.hardware.chip import Chip, Host


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostRates:
    """Attainable rates of the host beside the device; of its CPU, of a disk and of a link None where there is none, or
    it is unknown."""

    memory_bytes_per_s: Count
    link_bytes_per_s: Count | None
    flops_per_s: Count | None = None
    vector_flops_per_s: Count | None = None
    disk_read_bytes_per_s: Count | None = None
    disk_write_bytes_per_s: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WayRates:
    """An algorithm of a collective as a kernel runs it.

    latency_s: of all its messages, one after another.  link, network: what it sends per byte of the tensor, over the
    share of the rate that it reaches.  overlap: p of (latency^p + sending^p)^(1/p); below 1, messages are cut in chunks
    that pay latency again.  largest_bytes: tensors beyond it go another way.
    """

    latency_s: Count
    link: Count
    network: Count = 0.0
    overlap: float = 1.0
    largest_bytes: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rates:
    """Attainable rates of one operator; None drops the resource (the figure is unknown).

    fixed_s: time per launch.  hop_s: latency of one message between devices.  ways: algorithms of a collective in the
    place of its shape's.  least_s: how long the host takes to launch it; work shorter than that hides behind it.
    sharpness: p of the smooth maximum (sum of t^p)^(1/p) over resources; None is the maximum itself.
    """

    matrix_flops_per_s: Count
    vector_flops_per_s: Count | None
    special_ops_per_s: Count | None
    memory_bytes_per_s: Count
    l2_bytes_per_s: Count | None
    link_bytes_per_s: Count | None = None
    network_bytes_per_s: Count | None = None
    host: HostRates | None = None
    hop_s: Count = 0.0
    fixed_s: Count = 0.0
    sharpness: Count | None = None
    ways: tuple[WayRates, ...] | None = None
    least_s: Count = 0.0


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
        host=None if chip.host is None else _host(chip, chip.host, compute),
    )


def _host(chip: Chip, host: Host, compute: str) -> HostRates:
    """Of a host that several devices share, the even part of one; every device has a link of its own."""
    link, part = chip.host_link_rate, 1.0 / host.devices
    if link is None and host.disk is None:
        raise UserError(f"{chip.name} publishes no link to a host (pcie among the links of its YAML)")
    flops = host.cpu.matrix_rate(compute) * part if host.cpu and compute else None
    vector = host.cpu.vector_rate() if host.cpu else None
    return HostRates(
        memory_bytes_per_s=host.bandwidth_bytes_per_s * part,
        link_bytes_per_s=link,
        flops_per_s=flops,
        vector_flops_per_s=None if vector is None else vector * part,
        disk_read_bytes_per_s=host.disk.read_bytes_per_s * part if host.disk else None,
        disk_write_bytes_per_s=host.disk.write_bytes_per_s * part if host.disk else None,
    )
