"""Clock, power and driver version of an NVIDIA device, from NVML, which comes with the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from llmviewer.calibrate.timer import DeviceReading

#: nvmlClockType_t: the streaming multiprocessors.
SM_CLOCK = 1


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


def facts(device: int) -> dict[str, Any]:
    """Return driver, max_clock_mhz and power_limit_w, without those that NVML does not report."""
    library = _library()
    if library is None:
        return {}
    found: dict[str, Any] = {}
    version = ctypes.create_string_buffer(96)
    if library.nvmlSystemGetDriverVersion(version, len(version)) == 0:
        found["driver"] = version.value.decode()
    handle = _handle(library, device)
    value = ctypes.c_uint()
    if handle is not None and library.nvmlDeviceGetMaxClockInfo(handle, SM_CLOCK, ctypes.byref(value)) == 0:
        found["max_clock_mhz"] = float(value.value)
    if handle is not None and library.nvmlDeviceGetEnforcedPowerLimit(handle, ctypes.byref(value)) == 0:
        found["power_limit_w"] = value.value / 1e3
    return found
