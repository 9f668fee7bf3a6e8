"""The CUDA measurement protocol on a fake device that records calls, so that it runs without a GPU."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="measuring needs torch")

from llmviewer.calibrate import nvml, stopwatch  # noqa: E402
from llmviewer.calibrate.timer import DeviceReading, PreparedKernel  # noqa: E402


class Device:
    """Fake torch.cuda; `log` lists the calls in order."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def fake(self) -> SimpleNamespace:
        def event(**_: object) -> SimpleNamespace:
            return SimpleNamespace(
                record=lambda: self.log.append("event"), synchronize=lambda: None, elapsed_time=lambda end: 2.0
            )

        @contextmanager
        def graph(graph: object, stream: object):
            self.log.append("capture")
            yield
            self.log.append("captured")

        @contextmanager
        def stream(value: object):
            yield

        cuda = SimpleNamespace(
            Stream=lambda: SimpleNamespace(synchronize=lambda: self.log.append("wait")),
            Event=event,
            CUDAGraph=lambda: SimpleNamespace(replay=lambda: self.log.append("replay")),
            graph=graph,
            stream=stream,
            synchronize=lambda: None,
            set_stream=lambda of: self.log.append("default stream"),
            default_stream=lambda: None,
            current_device=lambda: 0,
        )
        scratch = SimpleNamespace(sum=self._flush)
        return SimpleNamespace(cuda=cuda, ones=lambda *_, **__: scratch, OutOfMemoryError=torch.OutOfMemoryError)

    def _flush(self) -> SimpleNamespace:
        self.log.append("flush")
        return SimpleNamespace(item=lambda: 0.0)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    monkeypatch.setattr(stopwatch, "torch", found.fake())
    monkeypatch.setattr(stopwatch, "WAKE_UP_S", 0.0)
    monkeypatch.setattr(nvml, "gauge", lambda device: DeviceReading)
    monkeypatch.setattr(nvml, "energy", lambda device: lambda: None)
    return found


def test_a_sample_is_one_replay_between_two_events_after_a_flush(device: Device) -> None:
    seen: list[int] = []
    timed, sample = stopwatch.CudaStopwatch(100.0).prepare(PreparedKernel(run=seen.append, copies=3), 5)
    assert timed == "graph"
    assert seen == [0, 1, 2, *(0, 1, 2, 0, 1)]  # warm, then captured
    device.log.clear()
    assert sample() == 2e-3
    assert device.log == ["flush", "event", "replay", "event"]
    assert len(seen) == 8


def test_without_a_graph_the_calls_are_launched_on_an_idle_device(device: Device) -> None:
    timed, sample = stopwatch.CudaStopwatch(100.0).prepare(
        PreparedKernel(run=lambda i: device.log.append("call"), graph=False), 2
    )
    assert timed == "events"
    device.log.clear()
    sample()
    assert device.log == ["flush", "wait", "event", "call", "call", "event"]


def test_a_kernel_that_cannot_be_captured_is_timed_call_by_call(device: Device) -> None:
    def run(i: int) -> None:
        if "capture" in device.log and "default stream" not in device.log:
            raise RuntimeError("operation not permitted when stream is capturing")

    timed, sample = stopwatch.CudaStopwatch(100.0).prepare(PreparedKernel(run=run), 4)
    assert timed == "events"
    assert device.log[-1] == "default stream"
    assert sample() == 2e-3


def test_out_of_memory_during_capture_is_raised_as_the_kernels_error(device: Device) -> None:
    def run(i: int) -> None:
        if "capture" in device.log:
            raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        stopwatch.CudaStopwatch(100.0).prepare(PreparedKernel(run=run), 4)
    assert device.log[-1] == "default stream"


def test_mean_power_is_energy_over_time(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 J more on the board's counter after a second of samples at 1,500 MHz; without asking, what the gauge says."""
    counter, clock = iter((100.0, 400.0)), iter(range(100))
    monkeypatch.setattr(nvml, "energy", lambda device: lambda: next(counter))
    monkeypatch.setattr(nvml, "gauge", lambda device: lambda: DeviceReading(clock_mhz=1500.0, power_w=80.0))
    watch = stopwatch.CudaStopwatch(100.0)
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: 0.25 * next(clock)))
    assert watch.reading(lambda: 1e-3) == DeviceReading(clock_mhz=1500.0, power_w=80.0)
    found = watch.reading(lambda: 1e-3, power_s=0.6)
    assert (found.clock_mhz, found.power_w, found.power_s) == (1500.0, 300.0, 1.0)


def test_a_board_without_a_counter_of_energy_has_the_power_of_its_gauge(device: Device) -> None:
    assert stopwatch.CudaStopwatch(100.0).reading(lambda: 1e-3, power_s=0.5) == DeviceReading()
