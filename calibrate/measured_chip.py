"""Chip YAML for a device without a data sheet: peaks are the best measured rates, and the file says so."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate import environment as machine
from llmviewer.calibrate.rows.gemm import SPARSE
from llmviewer.calibrate.sources import TableSource
from llmviewer.core import dtypes, parsing
from llmviewer.core.errors import UserError, printable
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip

if TYPE_CHECKING:
    import pandas as pd

#: First line of a generated file, which a later fit may replace.
GENERATED_HEADER = "# Measured, by `llmviewer calibrate fit`: "
#: Note of the bandwidth figure.
BANDWIDTH_NOTE = "the fastest kernel on data larger than the cache"
#: Compute capability -> generation (https://developer.nvidia.com/cuda-gpus), whose chips lend constants.
GENERATIONS = {
    "7.0": "volta", "7.5": "turing", "8.0": "ampere", "8.6": "ampere-ga10x", "8.9": "ada", "9.0": "hopper",
    "10.0": "blackwell", "10.3": "blackwell", "12.0": "blackwell-gb20x",
}  # fmt: skip
#: PCIe generation -> GT/s of a lane, of which 128 of 130 bits are data (https://pcisig.com/specifications/pciexpress).
PCIE_GT_PER_S = {3: 8.0, 4: 16.0, 5: 32.0}
#: (op, graph) of rows of `launch` -> name in the provenance.
LAUNCH_NAMES = {
    ("kernel", False): "kernel",
    ("kernel", True): "kernel_in_graph",
    ("kernel_and_wait", False): "kernel_and_wait",
}


def text_of(name: str, sources: Sequence[TableSource]) -> str:
    """YAML of a chip.  Raises UserError if the samples lack a figure that every chip needs."""
    facts = next((source.environment for source in sources if source.environment), {})
    peaks, bandwidth = _peaks(sources), _bandwidth(sources)
    for found, rows in ((peaks, "gemm"), (bandwidth, "copy")):
        if not found:
            reason = f"the samples have no {rows} rows to derive its rates from; pass a chip YAML with --hardware"
            raise UserError(f"no chip spec for '{printable(name)}', and {reason}")
    source = f"measured: torch {facts.get('torch', '?')}, {str(facts.get('date', '?'))[:10]}"
    lines = [
        f"{GENERATED_HEADER}the best rates of its samples, not data-sheet peaks.",
        f"name: {json.dumps(str(facts.get('device_name', name)))}",
        *_family(facts),
        "dense_tflops:",
        *(f"  {dtype}: {_figure_text(rate / 1e12, source, 'the fastest GEMM')}" for dtype, rate in peaks.items()),
        f"memory_bandwidth_gb_per_s: {_figure_text(bandwidth / 1e9, source, BANDWIDTH_NOTE)}",
        *_system_figures(facts, source),
    ]
    return "\n".join(lines) + "\n"


def _family(facts: Mapping[str, Any]) -> Iterator[str]:
    """Spec lines that tell from which chips constants are borrowed."""
    if "driver" in facts:  # of NVML
        yield "maker: NVIDIA"
        yield f"generation: {GENERATIONS.get(str(facts.get('compute_capability')), 'unknown')}"
    else:
        yield f"generation: {'cpu' if facts.get('kind') == 'cpu' else 'unknown'}"


def _system_figures(facts: Mapping[str, Any], source: str) -> Iterator[str]:
    """Spec lines with figures from the operating system."""
    memory = _number(facts, "memory_bytes") or machine.memory_bytes()
    if not memory:
        raise UserError("the samples do not contain the memory size of the device; pass a chip YAML with --hardware")
    figures = {
        "memory_capacity_gib": (memory, 2.0**30),
        "l2_capacity_mib": (_number(facts, "cache_bytes"), 2.0**20),
        "units": (_number(facts, "units", "threads"), 1.0),
        "clock_ghz": (_number(facts, "max_clock_mhz", "clock_mhz"), 1e3),
        "tdp_w": (_number(facts, "power_limit_w"), 1.0),
    }
    for key, (value, unit) in figures.items():
        if value:
            yield f"{key}: {_figure_text(value / unit, 'the operating system')}"
    lane, width = PCIE_GT_PER_S.get(int(_number(facts, "pcie_generation") or 0)), _number(facts, "pcie_width")
    if lane and width:
        rate = _figure_text(lane * width * 128.0 / 130.0 / 8.0, "the driver")
        yield f"links: {{pcie: {{gb_per_s_per_direction: {rate}}}}}\ndefault_link: pcie"


def _number(facts: Mapping[str, Any], *names: str) -> float | None:
    """The first of these fields that is a positive number; None if there is none."""
    values = [facts.get(name) for name in names]
    return next((float(v) for v in values if isinstance(v, (int, float)) and v > 0.0), None)


def _figure_text(value: float, source: str, note: str = "") -> str:
    noted = f", note: {json.dumps(note)}" if note else ""
    return f"{{value: {value:.5g}, source: {json.dumps(source)}{noted}}}"


def chip(text: str, name: str) -> Chip:
    """Parse the chip from such a text."""
    spec = parsing.from_yaml(text)
    assert isinstance(spec, dict)
    return specs.parse(spec, stem=name, path=f"{name}.yaml")


def may_replace(path: Path) -> bool:
    """Whether a path may be written: no file exists, or a fit wrote it."""
    if not path.is_file():
        return not path.exists()
    try:
        with path.open("rb") as stream:
            return stream.read(len(GENERATED_HEADER)) == GENERATED_HEADER.encode()
    except OSError:
        return False


def measured_rates(sources: Sequence[TableSource]) -> dict[str, Any]:
    """Measured bandwidth beyond the cache and of the host [GB/s], and launch times [us], for the provenance."""
    streams: dict[str, float] = {}
    for op, rates in _streams(sources):
        streams[op] = max(streams.get(op, 0.0), rates)
    launches: dict[str, float] = {}
    for frame in _tables(sources, "launch"):
        for op, graph, latency in zip(frame["op"], frame["graph"], frame["latency_us"], strict=True):
            name = LAUNCH_NAMES.get((str(op), bool(graph)), f"{op}_in_graph" if graph else str(op))
            launches[name] = min(float(latency), launches.get(name, np.inf))
    found = {
        "bandwidth_gb_per_s": {op: round(rate / 1e9, 1) for op, rate in streams.items()},
        "launch_us": launches,
        "host_gb_per_s": _host_rates(sources),
    }
    return {name: value for name, value in found.items() if value}


def _host_rates(sources: Sequence[TableSource]) -> dict[str, float]:
    """Highest rate of each kind of copy beside the device's memory [GB/s]: `h2d_pinned`, `memory_copy` ..."""
    found: dict[str, float] = {}
    for frame in _tables(sources, "host"):
        rates = frame["moved_bytes"] / (frame["latency_us"] * 1e3)
        for op, pinned, rate in zip(frame["op"], frame["pinned"], rates, strict=True):
            name = f"{op}_pinned" if pinned else f"{op}_pageable" if str(op) in ("h2d", "d2h") else str(op)
            found[name] = max(found.get(name, 0.0), round(float(rate), 2))
    return found


def _tables(sources: Sequence[TableSource], name: str) -> Iterator[pd.DataFrame]:
    """The table `name` of every source, unstable rows included.

    Only its best rates are taken: what disturbs a timing makes it longer, and a peak from the few stable rows of a busy
    machine, often the smallest shapes, would bound every prediction.
    """
    yield from (source.tables[name] for source in sources if name in source.tables)


def _peaks(sources: Sequence[TableSource]) -> dict[str, float]:
    """Compute dtype -> FLOP/s of the fastest GEMM."""
    found: dict[str, float] = {}
    for frame in _tables(sources, "gemm"):
        rates = 2.0 * frame["m"] * frame["n"] * frame["k"] / (frame["latency_us"] * 1e-6)
        for dtype, rate in rates.groupby(frame["dtype"]).max().items():
            if dtype not in ("w4a16", "fp8_block") and not str(dtype).endswith(SPARSE):
                plain = str(dtype).removesuffix("_rows")
                name = "tf32" if plain == "tf32" else dtypes.get_dtype(plain).compute
                found[name] = max(found.get(name, 0.0), float(rate))
    return found


def _bandwidth(sources: Sequence[TableSource]) -> float:
    """Byte/s of the fastest kernel whose data exceed the cache, including GEMMs that read weights."""
    rates = [rate for _, rate in _streams(sources)]
    for frame in _tables(sources, "gemm"):
        plain = frame[frame["dtype"].isin(("float32", "bfloat16", "float16")) & (frame.get("experts", 1) == 1)]
        width = np.where(plain["dtype"] == "float32", 4.0, 2.0)
        rates.extend(plain["n"] * plain["k"] * width / (plain["latency_us"] * 1e-6))
    return max(rates, default=0.0)


def _streams(sources: Sequence[TableSource]) -> Iterator[tuple[str, float]]:
    """Yield (op, byte/s) of rows of `copy` whose rotated arrays exceed the cache."""
    for source in sources:
        cache = _number(source.environment, "cache_bytes") or 0.0
        for frame in _tables([source], "copy"):
            rotated = (
                frame["rotated_bytes"].astype(float).fillna(np.inf) if "rotated_bytes" in frame.columns else np.inf
            )
            beyond = frame[(rotated > cache) & frame["moved_bytes"].notna()]
            for op, moved, latency in zip(beyond["op"], beyond["moved_bytes"], beyond["latency_us"], strict=True):
                yield str(op), float(moved) / (float(latency) * 1e-6)
