"""A chip without a data sheet: the best that its samples show stands in for it, and a YAML that says so."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate import environment as machine
from llmviewer.calibrate.sources import TableSource
from llmviewer.core import dtypes, parsing
from llmviewer.core.errors import UserError, shown
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip

if TYPE_CHECKING:
    import pandas as pd

#: How a file of ours begins: a later fit may replace it.
MARK = "# Measured, by `llmviewer calibrate fit`: "
#: Rows of `launch` -> what provenance calls them.
LAUNCHES = {
    ("kernel", False): "kernel",
    ("kernel", True): "kernel_in_graph",
    ("kernel_and_wait", False): "kernel_and_wait",
}


def text_of(name: str, sources: Sequence[TableSource]) -> str:
    """The YAML of a chip.  Raises UserError where the samples lack a figure that every chip needs."""
    said = next((source.environment for source in sources if source.environment), {})
    peaks, bandwidth = _peaks(sources), _bandwidth(sources)
    for found, rows in ((peaks, "gemm"), (bandwidth, "copy")):
        if not found:
            need = f"samples without rows of {rows} say nothing of its rates; --hardware takes the YAML of a chip"
            raise UserError(f"nobody describes '{shown(name)}', and {need}")
    source = f"measured: torch {said.get('torch', '?')}, {str(said.get('date', '?'))[:10]}"
    lines = [
        f"{MARK}the best rates of its samples, no data sheet's.",
        f"name: {json.dumps(str(said.get('device_name', name)))}",
        f"generation: {'cpu' if said.get('kind') == 'cpu' else 'unknown'}",
        "dense_tflops:",
        *(f"  {dtype}: {_figure(rate / 1e12, source, 'the fastest product')}" for dtype, rate in peaks.items()),
        f"memory_bandwidth_gb_per_s: {_figure(bandwidth / 1e9, source, 'the fastest kernel on data beyond the cache')}",
        *_given(said, source),
    ]
    return "\n".join(lines) + "\n"


def _given(said: Mapping[str, Any], source: str) -> Iterator[str]:
    """What the system says of the machine."""
    memory = _number(said, "memory_bytes") or machine.memory_bytes()
    if not memory:
        raise UserError("the samples do not say how much memory the device has; --hardware takes the YAML of a chip")
    figures = {
        "memory_capacity_gib": (memory, 2.0**30),
        "l2_capacity_mib": (_number(said, "cache_bytes"), 2.0**20),
        "units": (_number(said, "units", "threads"), 1.0),
        "clock_ghz": (_number(said, "max_clock_mhz", "clock_mhz"), 1e3),
    }
    for key, (value, unit) in figures.items():
        if value:
            yield f"{key}: {_figure(value / unit, 'the operating system')}"


def _number(said: Mapping[str, Any], *names: str) -> float | None:
    """The first of some facts that is a positive number."""
    values = [said.get(name) for name in names]
    return next((float(v) for v in values if isinstance(v, (int, float)) and v > 0.0), None)


def _figure(value: float, source: str, note: str = "") -> str:
    noted = f", note: {json.dumps(note)}" if note else ""
    return f"{{value: {value:.5g}, source: {json.dumps(source)}{noted}}}"


def chip(text: str, name: str) -> Chip:
    """The chip that such a text describes."""
    spec = parsing.from_yaml(text)
    assert isinstance(spec, dict)
    return specs.parse(spec, stem=name, path=f"{name}.yaml")


def ours(path: Path) -> bool:
    """Whether a file may be replaced: there is none, or a fit wrote it."""
    try:
        return path.read_text(encoding="utf-8").startswith(MARK)
    except FileNotFoundError:
        return True
    except (OSError, UnicodeDecodeError):
        return False


def figures(sources: Sequence[TableSource]) -> dict[str, Any]:
    """What the samples say of memory and launches, for provenance: GB/s beyond the cache, us."""
    streams: dict[str, float] = {}
    for op, rates in _streams(sources):
        streams[op] = max(streams.get(op, 0.0), rates)
    launches: dict[str, float] = {}
    for frame in _tables(sources, "launch"):
        for op, graph, latency in zip(frame["op"], frame["graph"], frame["latency_us"], strict=True):
            name = LAUNCHES.get((str(op), bool(graph)), str(op))
            launches[name] = min(float(latency), launches.get(name, np.inf))
    found = {"bandwidth_gb_per_s": {op: round(rate / 1e9, 1) for op, rate in streams.items()}, "launch_us": launches}
    return {name: value for name, value in found.items() if value}


def _tables(sources: Sequence[TableSource], name: str) -> Iterator[pd.DataFrame]:
    """A kind of table of every source: its stable rows, or all where none is."""
    for source in sources:
        if name in source.tables:
            frame = source.tables[name]
            stable = frame[frame["stable"].astype(bool)] if "stable" in frame.columns else frame
            yield stable if len(stable) else frame


def _peaks(sources: Sequence[TableSource]) -> dict[str, float]:
    """Matrix class -> FLOP/s of the fastest product."""
    found: dict[str, float] = {}
    for frame in _tables(sources, "gemm"):
        rates = 2.0 * frame["m"] * frame["n"] * frame["k"] / (frame["latency_us"] * 1e-6)
        for dtype, rate in rates.groupby(frame["dtype"]).max().items():
            if dtype not in ("w4a16", "fp8_block"):
                name = "tf32" if dtype == "tf32" else dtypes.named(str(dtype)).compute
                found[name] = max(found.get(name, 0.0), float(rate))
    return found


def _bandwidth(sources: Sequence[TableSource]) -> float:
    """Byte/s of the fastest kernel whose data do not fit the cache; products read their weights as fast."""
    rates = [rate for _, rate in _streams(sources)]
    for frame in _tables(sources, "gemm"):
        plain = frame[frame["dtype"].isin(("float32", "bfloat16", "float16")) & (frame.get("experts", 1) == 1)]
        width = np.where(plain["dtype"] == "float32", 4.0, 2.0)
        rates.extend(plain["n"] * plain["k"] * width / (plain["latency_us"] * 1e-6))
    return max(rates, default=0.0)


def _streams(sources: Sequence[TableSource]) -> Iterator[tuple[str, float]]:
    """(op, byte/s) of rows of `copy` whose copies together are larger than the cache."""
    for source in sources:
        cache = _number(source.environment, "cache_bytes") or 0.0
        for frame in _tables([source], "copy"):
            beyond = frame[frame["rotated_bytes"].fillna(np.inf).astype(float) > cache]
            for op, moved, latency in zip(beyond["op"], beyond["moved_bytes"], beyond["latency_us"], strict=True):
                yield str(op), float(moved) / (float(latency) * 1e-6)
