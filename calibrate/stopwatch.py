"""The clocks of two kinds of device: CUDA events around a graph's replay, and the processor's own clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from llmviewer.calibrate import nvml
from llmviewer.calibrate.environment import cpu_clock_mhz
from llmviewer.calibrate.timer import CACHES, Reading, Stopwatch, Work, is_cold

#: A device that was idle takes so long to raise its clocks.
WAKING_S = 0.5


def stopwatch(kind: str, cache_bytes: float) -> Stopwatch:
    """The clock of `cuda` or `cpu`."""
    return CudaStopwatch(cache_bytes) if kind == "cuda" else CpuStopwatch(cache_bytes)


class CpuStopwatch:
    """perf_counter around calls in a loop; Python's own share of a call (about a microsecond) is in it."""

    def __init__(self, cache_bytes: float) -> None:
        self.cache_bytes = cache_bytes
        self._scratch: torch.Tensor | None = None

    def prepare(self, work: Work, calls: int) -> tuple[str, Callable[[], float]]:
        """The copies go on in turn from sample to sample."""
        at = 0
        cold = is_cold(work, self)

        def sample() -> float:
            nonlocal at
            if not cold:
                self._flush()
            run, order = work.run, [i % work.copies for i in range(at, at + calls)]
            at += calls
            begun = time.perf_counter()
            for i in order:
                run(i)
            return time.perf_counter() - begun

        return "clock", sample

    def _flush(self) -> None:
        """Read something larger than the cache."""
        if self._scratch is None:
            self._scratch = torch.ones(int(CACHES * self.cache_bytes) // 4)
        self._scratch.sum()

    def reading(self, sample: Callable[[], float]) -> Reading:
        """The clock as the system tells it; a processor does not tell its power without privileges."""
        sample()
        return Reading(clock_mhz=cpu_clock_mhz())


class CudaStopwatch:
    """CUDA events around one replay of a graph of calls; around calls in a loop where a graph is not wanted.

    Before each sample something larger than the L2 is read: the copies are cold, and the host has time to launch the
    graph while the device is busy, so that its latency is not in the sample.
    """

    def __init__(self, cache_bytes: float) -> None:
        self.cache_bytes = cache_bytes
        self._scratch = torch.ones(int(2 * CACHES * cache_bytes) // 4, device="cuda")
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._gauge = nvml.gauge(torch.cuda.current_device())
        begun = time.monotonic()
        while time.monotonic() - begun < WAKING_S:
            self._scratch.sum().item()

    def prepare(self, work: Work, calls: int) -> tuple[str, Callable[[], float]]:
        """Warm up on the stream that will capture, capture, and fall back to a loop where a kernel refuses."""
        order = [i % work.copies for i in range(calls)]

        def loop() -> None:
            for i in order:
                work.run(i)

        torch.cuda.synchronize()  # the inputs were filled on another stream
        with torch.cuda.stream(self._stream):
            for i in order[:3]:
                work.run(i)
        torch.cuda.synchronize()
        graph = self._captured(loop) if work.graph else None
        launch = loop if graph is None else graph.replay
        return "events" if graph is None else "graph", self._sampler(launch, waits=graph is None)

    def _captured(self, loop: Callable[[], None]) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                loop()
            graph.replay()
            torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # it asks the host, or allocates behind torch's back
            torch.cuda.synchronize()
            return None
        finally:
            torch.cuda.set_stream(torch.cuda.default_stream())  # a capture that broke off leaves its own behind
        return graph

    def _sampler(self, launch: Callable[[], object], *, waits: bool) -> Callable[[], float]:
        """waits: the device is idle when the first call is launched, so that the host's time is in the sample."""
        events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        start, end = events

        def sample() -> float:
            with torch.cuda.stream(self._stream):
                self._scratch.sum()
                if waits:
                    self._stream.synchronize()
                start.record()
                launch()
                end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3

        return sample

    def reading(self, sample: Callable[[], float]) -> Reading:
        """Right after a sample: clocks fall much later than a call to the driver takes."""
        sample()
        return self._gauge()
