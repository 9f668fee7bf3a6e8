"""Environment of a measurement: device, software, clocks, threads, date."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmviewer.core.errors import UserError, missing_extra, unknown

#: Fields that must match for samples to be stored in one file.
IDENTITY = ("device", "device_name", "kind", "torch", "cuda", "driver", "threads", "gpus")
#: Cores this process may run on, read before a library binds the main thread to one of them.
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
#: Allowed values of --device.
DEVICES = ("cuda", "cpu")
#: Linux's description of a processor's caches and topology.
CPU_SYSFS = Path("/sys/devices/system/cpu")
#: Extensions of instruction sets that multiply matrices or widen vectors, as /proc/cpuinfo spells them (x86, ARM).
ISA = (
    *("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2"),
    *("sme", "sve2", "sve", "bf16", "i8mm", "asimd"),
)
#: Load per core above which the machine counts as busy.
BUSY = 0.5
#: Used when the system does not report the last-level cache size.
ASSUMED_CACHE_BYTES = 32 * 2**20


def require_torch() -> Any:
    """Import torch, or raise UserError that says how to install it."""
    try:
        import torch
    except ImportError as error:
        raise missing_extra("measuring needs torch", "calibrate") from error
    return torch


def choose_device(device: str | None) -> str:
    """Return `cuda` or `cpu`: the requested device, or CUDA if available."""
    torch = require_torch()
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in DEVICES:
        raise unknown("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = "no device is visible" if built else f"torch {torch.__version__} is built without it"
        raise UserError(f"no CUDA: {why}; --device cpu measures the processor")
    return device


def pin_threads() -> None:
    """Pin one OpenMP thread to each core; has no effect once torch is imported.

    On a busy machine threads move to idle cores instead, and give their core away while they wait for each other: two
    pinned ones of a load of 9 on 2 cores had waited 24 ms, a time slice, in most products of 0.5 ms.
    """
    if "torch" in sys.modules:
        return
    if busy():
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    else:
        os.environ.setdefault("OMP_PROC_BIND", "close")
        os.environ.setdefault("OMP_PLACES", "cores")


def describe(kind: str) -> dict[str, Any]:
    """Environment of a run, as stored in the first line of its file."""
    import datetime

    torch = require_torch()
    common = {
        "kind": kind,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "load": load_and_cores()[0],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return _cuda(torch) | common if kind == "cuda" else _cpu(torch) | common


def _cpu(torch: Any) -> dict[str, Any]:
    threads = physical_cores()
    torch.set_num_threads(threads)
    return {
        "device": "cpu",
        "device_name": cpu_name(),
        "threads": threads,
        "pinned": os.environ.get("OMP_PROC_BIND", "false").lower() not in ("false", ""),
        "cache_bytes": cpu_cache_bytes(),
        "memory_bytes": memory_bytes(),
        "clock_mhz": cpu_clock_mhz(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "isa": cpu_isa(),
    }


def _cuda(torch: Any) -> dict[str, Any]:
    from llmviewer.calibrate import nvml

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": chip_name(properties.name),
        "device_name": properties.name,
        "gpus": torch.cuda.device_count(),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "units": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "cache_bytes": getattr(properties, "L2_cache_size", 0) or ASSUMED_CACHE_BYTES,
        "cuda": torch.version.cuda or torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),
        **nvml.facts(0, torch.cuda.device_count()),
    }


def chip_name(title: str) -> str:
    """Spec name of the device that torch calls `title`; its own name, normalized, if there is no spec."""
    from llmviewer.hardware import names

    folded = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    try:
        return names.find(folded)[1]
    except UserError:
        return folded


def cpu_name() -> str:
    """Name of the processor from the operating system."""
    found = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def cpu_isa() -> list[str]:
    """Extensions of ISA that the processor has; empty if the system does not report them."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    words = set(found.group(1).split()) if found else set()
    return [name for name in ISA if name in words]


def physical_cores(root: Path = CPU_SYSFS) -> int:
    """Physical cores this process may run on; hardware threads of one core count once."""
    siblings = {_text(root / f"cpu{core}" / "topology" / "thread_siblings_list") or str(core) for core in CORES}
    return len(siblings)


def load_and_cores() -> tuple[float, int]:
    """Load average over the last minute, and the number of available cores."""
    return (os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0), len(CORES)


def busy() -> str:
    """The load of a machine that other programs use, in words; empty if it is idle."""
    load, cores = load_and_cores()
    return f"load {load:.1f} on {cores} cores" if load > BUSY * cores else ""


def cpu_clock_mhz() -> float | None:
    """Current mean clock of the cores [MHz]; None if the system does not report it."""
    clocks = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*([0-9.]+)", _text(Path("/proc/cpuinfo")), re.MULTILINE)]
    return sum(clocks) / len(clocks) if clocks else None


def cpu_cache_bytes(root: Path = CPU_SYSFS) -> int:
    """Total size of the last-level caches [byte]."""
    instances: dict[int, dict[str, int]] = {}
    for folder in root.glob("cpu[0-9]*/cache/index*"):
        size = re.fullmatch(r"([0-9]+)([KM]?)", _text(folder / "size").strip())
        if size and _text(folder / "type").strip() != "Instruction":
            level = int(_text(folder / "level").strip() or 0)
            scale = {"": 1, "K": 2**10, "M": 2**20}[size.group(2)]
            instances.setdefault(level, {})[_text(folder / "shared_cpu_list")] = int(size.group(1)) * scale
    return sum(instances[max(instances)].values()) if instances else ASSUMED_CACHE_BYTES


def free_bytes() -> float:
    """Available host memory [byte]; infinite if the system does not report it."""
    return _memory("MemAvailable") or float("inf")


def memory_bytes() -> float | None:
    """Host memory [byte]; None if the system does not report it."""
    return _memory("MemTotal")


def _memory(field: str) -> float | None:
    found = re.search(rf"^{field}:\s*([0-9]+) kB", _text(Path("/proc/meminfo")), re.MULTILINE)
    return float(found.group(1)) * 1024.0 if found else None


def identity_differences(current: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[str]:
    """Descriptions of the IDENTITY fields that differ."""
    return [
        f"{k}: {recorded.get(k)} in the file, {current.get(k)} now"
        for k in IDENTITY
        if current.get(k) != recorded.get(k)
    ]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
