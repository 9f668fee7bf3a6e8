"""Clock, power, memory, links and driver version of an NVIDIA device, from NVML, which comes with the driver."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any

from llmviewer.calibrate.timer import DeviceReading

#: nvmlClockType_t: the streaming multiprocessors.
SM_CLOCK = 1
#: Most NVLinks of a device (NVML_NVLINK_MAX_LINKS).
MAX_NVLINKS = 18
#: Level of the common ancestor of two devices -> path between them, as `nvidia-smi topo -m` calls it.
PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class _Memory(ctypes.Structure):
    """Bytes of a device: nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _library() -> Any:
    """Load and initialize NVML; None without an NVIDIA driver."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def _handle(library: Any, device: int) -> Any:
    """NVML handle of a torch device, by UUID since torch counts only visible devices; None on failure."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    handle = ctypes.c_void_p()
    if uuid is None:
        found = library.nvmlDeviceGetHandleByIndex_v2(device, ctypes.byref(handle))
    else:
        found = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle))
    return handle if found == 0 else None


def gauge(device: int) -> Callable[[], DeviceReading]:
    """Return a function that reads the current clock [MHz] and power [W]."""
    library = _library()
    handle = _handle(library, device) if library is not None else None
    if handle is None:
        return DeviceReading

    def read() -> DeviceReading:
        clock, power = ctypes.c_uint(), ctypes.c_uint()
        has_clock = library.nvmlDeviceGetClockInfo(handle, SM_CLOCK, ctypes.byref(clock)) == 0
        has_power = library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power)) == 0  # milliwatts
        return DeviceReading(
            clock_mhz=float(clock.value) if has_clock else None,
            power_w=power.value / 1e3 if has_power else None,
        )

    return read


def energy(device: int) -> Callable[[], float | None]:
    """Return a function that reads the energy that the board has drawn since the driver was loaded [J]."""
    library = _library()
    handle = _handle(library, device) if library is not None else None

    def read() -> float | None:
        value = ctypes.c_ulonglong()
        found = 1 if handle is None else library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(value))
        return value.value / 1e3 if found == 0 else None  # millijoules

    return read


def facts(device: int, gpus: int = 1) -> dict[str, Any]:
    """Driver, limits, memory and links of a device, without those that NVML does not report.

    max_clock_mhz, power_limit_w, reported_memory_bytes (all of it, before CUDA's own), pcie_generation and pcie_width
    (the most that device and slot support), nvlinks (active ones), topology (paths to the next devices of `gpus`).
    """
    library = _library()
    if library is None:
        return {}
    found: dict[str, Any] = {}
    version = ctypes.create_string_buffer(96)
    if library.nvmlSystemGetDriverVersion(version, len(version)) == 0:
        found["driver"] = version.value.decode()
    handle = _handle(library, device)
    return found if handle is None else found | _properties(library, handle) | _paths(library, handle, device, gpus)


def _properties(library: Any, handle: Any) -> dict[str, Any]:
    """Limits, memory and links of one device."""
    calls: dict[str, tuple[Callable[[Any], int], Callable[[int], float]]] = {
        "max_clock_mhz": (lambda value: library.nvmlDeviceGetMaxClockInfo(handle, SM_CLOCK, value), float),
        "power_limit_w": (lambda value: library.nvmlDeviceGetEnforcedPowerLimit(handle, value), lambda mw: mw / 1e3),
        "pcie_generation": (lambda value: library.nvmlDeviceGetMaxPcieLinkGeneration(handle, value), int),
        "pcie_width": (lambda value: library.nvmlDeviceGetMaxPcieLinkWidth(handle, value), int),
    }
    found: dict[str, Any] = {}
    value, memory = ctypes.c_uint(), _Memory()
    for name, (call, read) in calls.items():
        if call(ctypes.byref(value)) == 0:
            found[name] = read(value.value)
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
        found["reported_memory_bytes"] = float(memory.total)
    active = [library.nvmlDeviceGetNvLinkState(handle, link, ctypes.byref(value)) == 0 and value.value == 1
              for link in range(MAX_NVLINKS)]  # fmt: skip
    return found | ({"nvlinks": sum(active)} if any(active) else {})


def _paths(library: Any, handle: Any, device: int, gpus: int) -> dict[str, Any]:
    """Paths from a device to the others on the bus, by number of devices: `SYS x3`."""
    found: Counter[str] = Counter()
    for other in (handle_of for at in range(gpus) if at != device and (handle_of := _handle(library, at)) is not None):
        level = ctypes.c_int()
        if library.nvmlDeviceGetTopologyCommonAncestor(handle, other, ctypes.byref(level)) == 0:
            found[PATHS.get(level.value, str(level.value))] += 1
    return {"topology": [f"{path} x{count}" for path, count in found.items()]} if found else {}
