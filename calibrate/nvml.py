"""Clock, power and driver of an NVIDIA device, from the library that comes with the driver (NVML)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from llmviewer.calibrate.timer import Reading

#: nvmlClockType_t: the streaming multiprocessors.
SM_CLOCK = 1


def _library() -> Any:
    """The library, started; None where there is none (no NVIDIA driver)."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def _handle(library: Any, device: int) -> Any:
    """The device as NVML knows it: torch counts only the visible ones, so by its UUID."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    handle = ctypes.c_void_p()
    if uuid is None:
        found = library.nvmlDeviceGetHandleByIndex_v2(device, ctypes.byref(handle))
    else:
        found = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle))
    return handle if found == 0 else None


def gauge(device: int) -> Callable[[], Reading]:
    """A function that reads clock [MHz] and power [W] now."""
    library = _library()
    handle = _handle(library, device) if library is not None else None
    if handle is None:
        return Reading

    def read() -> Reading:
        clock, power = ctypes.c_uint(), ctypes.c_uint()
        has_clock = library.nvmlDeviceGetClockInfo(handle, SM_CLOCK, ctypes.byref(clock)) == 0
        has_power = library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power)) == 0  # milliwatts
        return Reading(
            clock_mhz=float(clock.value) if has_clock else None,
            power_w=power.value / 1e3 if has_power else None,
        )

    return read


def facts(device: int) -> dict[str, Any]:
    """driver, max_clock_mhz, power_limit_w; what NVML does not say is left out."""
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
