"""Kernels of a device as a profiler recorded them, with the marks that an engine set around its forward passes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel, copy or fill of a device's queue.

    start_s: on the clock of the recording.  stream: queue of the device.  launch_s: time of the call on the host that
    launched it, None if the profiler does not link them (kernels of a replayed graph).  operator: name of the
    framework's operator that launched it, such as aten::mm.  shape: rows, inputs and outputs of its matrix product.
    """

    name: str
    start_s: float
    seconds: float
    stream: int = 0
    launch_s: float | None = None
    operator: str = ""
    shape: tuple[float, float, float] | None = None

    @property
    def end_s(self) -> float:
        """Time at which the kernel ended [s]."""
        return self.start_s + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A named span of time that the engine or the user marked.  on_device: its times are those of the kernels."""

    name: str
    start_s: float
    end_s: float
    on_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Kernels of one device in order of their start.

    program: the profiler.  device: name of the chip as the profiler gives it, "" if it does not.  on_host: the kernels
    are operators that ran on the processor.  notes: what the recording lacks, in sentences for the user.
    """

    program: str
    kernels: tuple[Kernel, ...]
    marks: tuple[Mark, ...] = ()
    device: str = ""
    on_host: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSum:
    """All runs of one kernel: their number and their seconds in total."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Kernels of a run summed by name: a recording without times of single kernels."""

    program: str
    kernels: tuple[KernelSum, ...]
    device: str = ""
    notes: tuple[str, ...] = ()
