"""Stopwatches of two kinds of device: CUDA events around a graph replay, and the clock of the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from llmviewer.calibrate import nvml
from llmviewer.calibrate.environment import cpu_clock_mhz
from llmviewer.calibrate.timer import CACHE_MULTIPLE, DeviceReading, PreparedKernel, Stopwatch, is_cold

#: Time an idle device needs to raise its clocks [s].
WAKE_UP_S = 0.5


def stopwatch(kind: str, cache_bytes: float) -> Stopwatch:
    """Stopwatch of a device, `cuda` or `cpu`."""
    return CudaStopwatch(cache_bytes) if kind == "cuda" else CpuStopwatch(cache_bytes)


class CpuStopwatch:
    """Times calls in a loop with perf_counter, including Python's overhead of about 1 us per call."""

    def __init__(self, cache_bytes: float) -> None:
        self.cache_bytes = cache_bytes
        self._scratch: torch.Tensor | None = None

    def prepare(self, kernel: PreparedKernel, calls: int) -> tuple[str, Callable[[], float]]:
        """Return "clock" and the sample function; the rotation of copies continues across samples."""
        at = 0
        cold = is_cold(kernel, self)

        def sample() -> float:
            nonlocal at
            if not cold:
                self._flush()
            run, order = kernel.run, [i % kernel.copies for i in range(at, at + calls)]
            at += calls
            started_at = time.perf_counter()
            for i in order:
                run(i)
            return time.perf_counter() - started_at

        return "clock", sample

    def _flush(self) -> None:
        """Evict the cache by reading a larger array."""
        if self._scratch is None:
            self._scratch = torch.ones(int(CACHE_MULTIPLE * self.cache_bytes) // 4)
        self._scratch.sum()

    def reading(self, sample: Callable[[], float], power_s: float = 0.0) -> DeviceReading:
        """Clock from the operating system; reading the power of a CPU needs privileges."""
        sample()
        return DeviceReading(clock_mhz=cpu_clock_mhz())


class CudaStopwatch:
    """Times one replay of a CUDA graph of calls, or a loop of calls without a graph, with CUDA events.

    Before each sample an array larger than L2 is read: the copies are cold, and the host launches the graph while the
    device is busy, so that launch latency is not in the sample.
    """

    def __init__(self, cache_bytes: float) -> None:
        self.cache_bytes = cache_bytes
        self._scratch = torch.ones(int(2 * CACHE_MULTIPLE * cache_bytes) // 4, device="cuda")
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._gauge = nvml.gauge(torch.cuda.current_device())
        self._energy = nvml.energy(torch.cuda.current_device())
        started_at = time.monotonic()
        while time.monotonic() - started_at < WAKE_UP_S:
            self._scratch.sum().item()

    def prepare(self, kernel: PreparedKernel, calls: int) -> tuple[str, Callable[[], float]]:
        """Warm up and capture a graph on one stream; fall back to a loop for a kernel that cannot be captured."""
        order = [i % kernel.copies for i in range(calls)]

        def loop() -> None:
            for i in order:
                kernel.run(i)

        torch.cuda.synchronize()  # the inputs were filled on another stream
        with torch.cuda.stream(self._stream):
            for i in order[:3]:
                kernel.run(i)
        torch.cuda.synchronize()
        graph = self._captured(loop) if kernel.graph else None
        launch = loop if graph is None else graph.replay
        return "events" if graph is None else "graph", self._sampler(launch, from_idle=graph is None)

    def _captured(self, loop: Callable[[], None]) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                loop()
            graph.replay()
            torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # the kernel synchronizes with the host, or allocates outside torch
            torch.cuda.synchronize()
            return None
        finally:
            torch.cuda.set_stream(torch.cuda.default_stream())  # a failed capture leaves its stream current
        return graph

    def _sampler(self, launch: Callable[[], object], *, from_idle: bool) -> Callable[[], float]:
        """Return a function that times one launch [s].

        from_idle: wait for the device before the first call, so that host time is in the sample.
        """
        events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        start, end = events

        def sample() -> float:
            with torch.cuda.stream(self._stream):
                self._scratch.sum()
                if from_idle:
                    self._stream.synchronize()
                start.record()
                launch()
                end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3

        return sample

    def reading(self, sample: Callable[[], float], power_s: float = 0.0) -> DeviceReading:
        """Clock and power right after a sample, before the clocks fall; power_s: mean power of as long a series of
        samples, from the board's counter of energy, at the median clock."""
        sample()
        found = self._gauge()
        before, started_at = self._energy() if power_s else None, time.monotonic()
        if before is None:
            return found
        clocks = []
        while time.monotonic() - started_at < power_s:
            sample()
            clocks.append(self._gauge().clock_mhz or 0.0)
        after, seconds = self._energy(), time.monotonic() - started_at
        clock = sorted(clocks)[len(clocks) // 2] or found.clock_mhz
        return DeviceReading(clock_mhz=clock, power_w=((after or before) - before) / seconds, power_s=seconds)
