"""What a measurement was made on: device, software, clocks, threads, date."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmviewer.core.errors import UserError, unknown

#: Of an environment what must be alike for two samples to stand in one file.
IDENTITY = ("device", "device_name", "kind", "torch", "cuda", "driver", "threads", "gpus")
#: Cores this process may run on, asked before any library binds the main thread to one of them.
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
#: What --device takes.
DEVICES = ("cuda", "cpu")
#: Where Linux says which caches a processor has.
CACHES = Path("/sys/devices/system/cpu")
#: Taken where the system does not say how large the last cache is.
ASSUMED_CACHE_BYTES = 32 * 2**20


def need_torch() -> Any:
    """torch, or the one line that says how to get it."""
    try:
        import torch
    except ImportError as error:
        raise UserError("measuring needs torch: pip install 'llmviewer[calibrate]'") from error
    return torch


def chosen(device: str | None) -> str:
    """`cuda` or `cpu`: what was asked for, or CUDA where it is present."""
    torch = need_torch()
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
    """Ask for one thread a core that stays there; heard only by a torch that is not yet imported."""
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_PROC_BIND", "close")
        os.environ.setdefault("OMP_PLACES", "cores")


def describe(kind: str) -> dict[str, Any]:
    """The environment of a run: what stands in the first line of its file."""
    import datetime

    torch = need_torch()
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
        **nvml.facts(0),
    }


def chip_name(title: str) -> str:
    """Our name of the device that torch calls `title`; its own, folded, where we know none."""
    from llmviewer.core import data

    folded = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    try:
        return data.find("hardware_specs", folded, "chip")[1]
    except UserError:
        return folded


def cpu_name() -> str:
    """The processor as the system calls it."""
    found = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def physical_cores(root: Path = CACHES) -> int:
    """Cores among those this process may run on, two hardware threads of one counted once."""
    siblings = {_text(root / f"cpu{core}" / "topology" / "thread_siblings_list") or str(core) for core in CORES}
    return len(siblings)


def load_and_cores() -> tuple[float, int]:
    """Processes that ran at once over the last minute, and the cores there are for them."""
    return (os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0), len(CORES)


def cpu_clock_mhz() -> float | None:
    """The mean clock of the cores now; None where the system does not say."""
    clocks = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*([0-9.]+)", _text(Path("/proc/cpuinfo")), re.MULTILINE)]
    return sum(clocks) / len(clocks) if clocks else None


def cpu_cache_bytes(root: Path = CACHES) -> int:
    """Bytes of the last level of cache, all its instances together."""
    instances: dict[int, dict[str, int]] = {}
    for folder in root.glob("cpu[0-9]*/cache/index*"):
        size = re.fullmatch(r"([0-9]+)([KM]?)", _text(folder / "size").strip())
        if size and _text(folder / "type").strip() != "Instruction":
            level = int(_text(folder / "level").strip() or 0)
            scale = {"": 1, "K": 2**10, "M": 2**20}[size.group(2)]
            instances.setdefault(level, {})[_text(folder / "shared_cpu_list")] = int(size.group(1)) * scale
    return sum(instances[max(instances)].values()) if instances else ASSUMED_CACHE_BYTES


def free_bytes() -> float:
    """Host memory that can be taken without harm; infinite where the system does not say."""
    return _memory("MemAvailable") or float("inf")


def memory_bytes() -> float | None:
    """Host memory; None where the system does not say."""
    return _memory("MemTotal")


def _memory(field: str) -> float | None:
    found = re.search(rf"^{field}:\s*([0-9]+) kB", _text(Path("/proc/meminfo")), re.MULTILINE)
    return float(found.group(1)) * 1024.0 if found else None


def difference(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Words on what of the identity differs."""
    return [f"{k} {other.get(k)} there, {mine.get(k)} here" for k in IDENTITY if mine.get(k) != other.get(k)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
