"""Time of an operator: work divided by rates.  No other file divides work by rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.core.counts import Count, present, total
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Operator, Place
from llmviewer.core.kinds import Kind
from llmviewer.hardware.chip import Chip
from llmviewer.timing.efficiency import AlgorithmRates, Efficiency, HostRates, Rates, ideal

if TYPE_CHECKING:
    from llmviewer.ops.collective import CollectiveShape

#: Resources; the first one wins a tie.
BOUNDS = ("compute", "memory", "vector", "special", "l2", "link", "host", "disk", "overhead")
OVERHEAD = BOUNDS[-1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
        yield "link", crossing / rates.link_bytes_per_s
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
    seconds = operator.moved_bytes(Place.HOST) / rates.memory_bytes_per_s
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
