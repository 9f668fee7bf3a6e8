"""Efficiency: operator x chip -> attainable rates of the kernel, and a fixed time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from string import ascii_lowercase
from typing import TypeAlias

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Operator, Role
from llmviewer.hardware.chip import Chip, Host


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostRates:
    """Attainable rates of the host; None for a CPU, disk or link that is absent or has no published rate."""

    memory_bytes_per_s: Count
    link_bytes_per_s: Count | None
    flops_per_s: Count | None = None
    vector_flops_per_s: Count | None = None
    disk_read_bytes_per_s: Count | None = None
    disk_write_bytes_per_s: Count | None = None
    disk_reads_per_s: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AlgorithmRates:
    """An algorithm of a collective as a kernel runs it.

    latency_s: sum over its consecutive messages.  link, network: bytes sent per byte of the tensor, divided by the
    fraction of the rate that is reached.  overlap: p of (latency^p + sending^p)^(1/p); below 1, messages are cut into
    chunks that each pay latency.  largest_bytes: larger tensors use another algorithm.
    """

    latency_s: Count
    link: Count
    network: Count = 0.0
    overlap: float = 1.0
    largest_bytes: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rates:
    """Attainable rates of one operator; a resource whose rate is None (unknown) is ignored.

    fixed_s: time per launch.  hop_s: latency of one message between devices.  algorithms: replace the collective
    algorithms of the operator's shape.  host_launch_s: host time to launch the operator, a lower bound of its time.
    sharpness: p of the smooth maximum (sum of t^p)^(1/p) over resources; None for the exact maximum.
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
    algorithms: tuple[AlgorithmRates, ...] | None = None
    host_launch_s: Count = 0.0

    def with_times(self, launch: float, latency: float) -> Rates:
        """The rates with times of launches and latencies of messages multiplied by factors."""
        algorithms = self.algorithms and tuple(
            replace(one, latency_s=one.latency_s * latency) for one in self.algorithms
        )
        return replace(
            self,
            fixed_s=self.fixed_s * launch,
            host_launch_s=self.host_launch_s * launch,
            hop_s=self.hop_s * latency,
            algorithms=algorithms,
        )


Efficiency: TypeAlias = Callable[[Operator, Chip], Rates]


def ideal(operator: Operator, chip: Chip) -> Rates:
    """Data-sheet rates: every efficiency 1 and no fixed time, which gives a lower bound of the time."""
    compute = operator.compute if operator.kind.facts.matrix_units else ""
    rates = _data_sheet(chip, compute)
    if chip.load_bytes_per_s == np.inf or not compute:
        return rates
    return replace(rates, memory_bytes_per_s=_loading(operator, chip))


@lru_cache(maxsize=64)
def _data_sheet(chip: Chip, compute: str) -> Rates:
    """Data-sheet rates of a chip for one compute class; cached, as a chip is immutable."""
    return Rates(
        matrix_flops_per_s=chip.matrix_rate(compute) if compute else 1.0,
        vector_flops_per_s=chip.vector_rate(),
        special_ops_per_s=chip.special_ops_per_s,
        memory_bytes_per_s=chip.bandwidth_bytes_per_s,
        hop_s=chip.hop_s,
        l2_bytes_per_s=chip.l2_bandwidth_bytes_per_s,
        link_bytes_per_s=chip.link_rate,
        network_bytes_per_s=chip.network_rate,
        host=None if chip.host is None else _host(chip, chip.host, compute),
    )


def _loading(operator: Operator, chip: Chip) -> Count:
    """Rate of an operator's traffic if matrix units receive its weights, keys and values at a limited rate [byte/s].

    They enter at the width of the units' format (fp16, int8 ...) if they are stored in fewer bits.
    """
    width = float(chip.compute_dtype(operator.compute).lstrip(ascii_lowercase)) / 8.0
    held = total(
        a.elements * max(a.tensor.dtype.bytes, width)
        for a in operator.reads
        if a.tensor.role in (Role.WEIGHT, Role.CACHE)
    )
    traffic = np.maximum(operator.traffic_bytes, 1.0)
    return np.minimum(chip.bandwidth_bytes_per_s, chip.load_bytes_per_s * traffic / np.maximum(held, 1e-9))


def _host(chip: Chip, host: Host, compute: str) -> HostRates:
    """One device's even share of its host with all sockets; the link is not shared, as every device has its own."""
    link, share = chip.host_link_rate, host.sockets / host.devices
    if link is None and host.disk is None:
        raise UserError(f"{chip.name} publishes no link to a host; add `pcie` to the links in its YAML file")
    flops = None
    if host.cpu and compute:
        on_matrix_units = host.cpu.compute_dtype(compute) in host.cpu.matrix_flops_per_s
        flops = host.cpu.matrix_rate(compute) * share * (host.matrix_share if on_matrix_units else 1.0)
    vector = host.cpu.vector_rate() if host.cpu else None
    return HostRates(
        memory_bytes_per_s=host.bandwidth_bytes_per_s * share * host.memory_share,
        link_bytes_per_s=None if link is None else link * host.link_share,
        flops_per_s=flops,
        vector_flops_per_s=None if vector is None else vector * share,
        disk_read_bytes_per_s=host.disk.read_bytes_per_s / host.devices if host.disk else None,
        disk_write_bytes_per_s=host.disk.write_bytes_per_s / host.devices if host.disk else None,
        disk_reads_per_s=host.disk.reads_per_s / host.devices if host.disk and host.disk.reads_per_s else None,
    )
