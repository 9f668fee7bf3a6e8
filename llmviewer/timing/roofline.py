"""Time of an operator: work divided by rates that its kernel attains.  No other file divides work by rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from llmviewer.core.counts import Count, present, total
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Operator, Place, Role
from llmviewer.core.kinds import Kind
from llmviewer.hardware.chip import Chip, Host

if TYPE_CHECKING:
    from llmviewer.ops.collective import CollectiveShape


@frozen(eq=False)
class HostRates:
    """Attainable rates of the host; None for a CPU, disk or link that is absent or has no published rate."""

    memory_bytes_per_s: Count
    weight_bytes_per_s: Count
    link_bytes_per_s: Count | None
    wait_s: Count = 0.0
    flops_per_s: Count | None = None
    vector_flops_per_s: Count | None = None
    disk_read_bytes_per_s: Count | None = None
    disk_write_bytes_per_s: Count | None = None
    disk_reads_per_s: Count | None = None


@frozen(eq=False)
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


@frozen(eq=False)
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
    memory = host.bandwidth_bytes_per_s * share
    return HostRates(
        memory_bytes_per_s=memory * host.memory_share,
        weight_bytes_per_s=memory * host.weight_share,
        wait_s=host.wait_s,
        link_bytes_per_s=None if link is None else link * host.link_share,
        flops_per_s=flops,
        vector_flops_per_s=None if vector is None else vector * share,
        disk_read_bytes_per_s=host.disk.read_bytes_per_s / host.devices if host.disk else None,
        disk_write_bytes_per_s=host.disk.write_bytes_per_s / host.devices if host.disk else None,
        disk_reads_per_s=host.disk.reads_per_s / host.devices if host.disk and host.disk.reads_per_s else None,
    )


#: Resources; the first one wins a tie.
BOUNDS = ("compute", "memory", "vector", "special", "l2", "link", "host", "disk", "overhead")
OVERHEAD = BOUNDS[-1]


@frozen(eq=False)
class Timing:
    """Time of one run of one operator [s], and the time of each resource by itself."""

    time_s: Count
    resources: tuple[tuple[str, Count], ...]

    def times(self, number: Count) -> Timing:
        """The time of `number` runs."""
        resources = tuple((name, seconds * number) for name, seconds in self.resources)
        return Timing(time_s=self.time_s * number, resources=resources)


def slowest(seconds: Mapping[str, float]) -> str:
    """The resource of BOUNDS that takes longest."""
    return max(seconds, key=lambda name: (seconds[name], -BOUNDS.index(name)))


def bound(kernel: Mapping[str, float], roof: Mapping[str, float]) -> str:
    """The resource that bounds an operator: overhead if that takes longest in its kernel, else the roofline's slowest.

    kernel, roof: time of each resource as the kernel runs, and at the rates of the data sheet [s].
    """
    return OVERHEAD if slowest(kernel) == OVERHEAD else slowest(roof)


def _seconds(operator: Operator, rates: Rates, traffic: Count) -> Iterator[tuple[str, Count]]:
    """Work / rate of every resource that the operator uses [s]."""
    if operator.runs_on is Place.HOST and rates.host is not None:
        yield "host", _on_host(operator, rates.host)
        return
    yield "memory", traffic / rates.memory_bytes_per_s
    for name, work, rate in (
        ("compute", operator.matmul_flops, rates.matrix_flops_per_s),
        ("vector", operator.vector_work, rates.vector_flops_per_s),
        ("special", operator.special_ops, rates.special_ops_per_s),
    ):
        if rate is not None and present(work):
            yield name, work / rate
    if rates.l2_bytes_per_s is not None:
        yield "l2", (traffic + operator.moved_bytes(Place.L2)) / rates.l2_bytes_per_s
    if operator.kind is Kind.COLLECTIVE:
        # where it does not run there is neither latency nor a launch
        yield "link", collective_time(operator.shape, rates) * operator.where  # type: ignore[arg-type]
    elif rates.host is not None:
        yield from _host_seconds(operator, rates.host)


def _host_seconds(operator: Operator, rates: HostRates) -> Iterator[tuple[str, Count]]:
    """Time of the host's memory and CPU (2 FLOP per weight it reads and row), of its link, and of its disk [s]."""
    moved, crossing = operator.moved_bytes(Place.HOST), operator.moved_bytes(Place.LINK)
    if present(moved):
        seconds = moved / rates.memory_bytes_per_s
        if rates.flops_per_s is not None and operator.kind is not Kind.COPY:
            weights = total(a.elements for a in operator.reads if a.tensor.place is Place.HOST)
            seconds = np.maximum(seconds, 2.0 * operator.output_shape[0] * weights / rates.flops_per_s)
        yield "host", seconds
    if present(crossing) and rates.link_bytes_per_s is not None:
        waited: Any = crossing > 0.0 if operator.kind is Kind.COPY and operator.shape is None else 0.0
        yield "link", crossing / rates.link_bytes_per_s + rates.wait_s * operator.where * waited
    for accesses, rate in (
        (operator.reads, rates.disk_read_bytes_per_s),
        (operator.writes, rates.disk_write_bytes_per_s),
    ):
        on_disk = total(a.elements * a.tensor.dtype.bytes for a in accesses if a.tensor.place is Place.DISK)
        if present(on_disk):
            assert rate is not None  # a technique that stores tensors on a disk also sets the disk
            seconds = on_disk / rate
            request = getattr(operator.shape, "request_bytes", None)
            if request is not None and rates.disk_reads_per_s is not None:
                seconds = np.maximum(seconds, on_disk / request / rates.disk_reads_per_s)
            yield "disk", seconds


def _on_host(operator: Operator, rates: HostRates) -> Count:
    """Time on the host's CPU, the slower of memory and compute; compute units of unknown rate are ignored [s]."""
    rate_of_memory = rates.weight_bytes_per_s if operator.kind is Kind.GEMM else rates.memory_bytes_per_s
    seconds = operator.moved_bytes(Place.HOST) / rate_of_memory
    for work, rate in (
        (operator.matmul_flops, rates.flops_per_s),
        (operator.vector_work, rates.vector_flops_per_s),
    ):
        if rate is not None and present(work):
            seconds = np.maximum(seconds, work / rate)
    return seconds


def collective_time(shape: CollectiveShape, rates: Rates) -> Count:
    """Messages x latency + bytes / rate of the fastest algorithm [s]; link and network transfer concurrently.

    Without latency, as on the data sheet, it is the algorithm that sends the fewest bytes.
    """
    if rates.algorithms is not None:
        return _time_of_kernels(rates.algorithms, shape.size_bytes, rates)
    fastest: Count = np.inf
    direct = shape.direct() if present(rates.hop_s) else ()
    for algorithm in (*shape.algorithms(), *direct):
        seconds: Count = 0.0
        for share, rate in ((algorithm.link, rates.link_bytes_per_s), (algorithm.network, rates.network_bytes_per_s)):
            if share:
                seconds = np.maximum(seconds, shape.size_bytes * share / _required(rate))
        fastest = np.minimum(fastest, seconds + algorithm.steps * rates.hop_s)
    return fastest


def _time_of_kernels(algorithms: tuple[AlgorithmRates, ...], size: Count, rates: Rates) -> Count:
    """Time of the fastest algorithm as kernels run it [s]: latency and sending overlap, and the host launches it."""
    fastest: Count = np.inf
    for algorithm in algorithms:
        sending = size * algorithm.link / _required(rates.link_bytes_per_s) if algorithm.link else 0.0
        if algorithm.network:
            sending = np.maximum(sending, size * algorithm.network / _required(rates.network_bytes_per_s))
        seconds = (algorithm.latency_s**algorithm.overlap + sending**algorithm.overlap) ** (1.0 / algorithm.overlap)
        if algorithm.largest_bytes < np.inf:
            seconds = np.where(size <= algorithm.largest_bytes, seconds, np.inf)
        fastest = np.minimum(fastest, seconds)
    return np.maximum(fastest, rates.host_launch_s) * (size > 0.0)  # an empty tensor takes no time


def _required(link: Count | None) -> Count:
    if link is None:
        raise UserError("this chip publishes no link to other devices, which parallelism needs (`links` in its YAML)")
    return link


def time_operator(operator: Operator, chip: Chip, efficiency: Efficiency, traffic: Count) -> Timing:
    """Maximum over resources of work / rate, plus the fixed time.  traffic: the operator's device-memory bytes.

    The maximum is smooth if the efficiency has a sharpness, as kernels near the ridge are slower than either roof.
    """
    if operator.one_run is not None:
        return time_operator(operator.one_run, chip, efficiency, operator.one_run.traffic_bytes).times(operator.runs)
    # hosts and their links are not measured: shares of data-sheet rates apply even if kernels of the device are
    # calibrated
    rates = (efficiency if chip.host is None or operator.is_kernel else ideal)(operator, chip)
    (_, seconds), *others = resources = tuple(_seconds(operator, rates, traffic))
    for _, other in others:
        seconds = np.maximum(seconds, other)
    if rates.sharpness is not None and others:
        seconds = _smooth(resources, seconds, rates.sharpness)
    if present(rates.fixed_s):
        launched: Any = seconds > 0.0  # operators without work are not launched
        overhead = rates.fixed_s * operator.where * launched
        resources += ((OVERHEAD, overhead),)
        seconds = seconds + overhead
    return Timing(time_s=seconds, resources=resources)


def _smooth(resources: tuple[tuple[str, Count], ...], slowest: Count, sharpness: Count) -> Count:
    """Smooth maximum (sum of t^p)^(1/p), scaled by the slowest resource against overflow."""
    scale = np.maximum(slowest, np.finfo(np.float64).tiny)  # no division by 0 where there is no work
    powers = total((seconds / scale) ** sharpness for _, seconds in resources)
    return slowest * np.maximum(powers, 1.0) ** (1.0 / sharpness)
