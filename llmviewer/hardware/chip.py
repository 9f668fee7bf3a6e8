"""Chips, links, hosts and disks in SI units, and the substitutes for matrix dtypes that a chip lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.language import record
from llmviewer.language.record import ABSENT, Form, stated

#: A figure in the units of spec files; outside this range products may exceed that of float64.
IN_RANGE = record.number(1e-6, 1e15, expected="a positive number (1e-6 to 1e15)")


@frozen
class Figure:
    """One number of a spec file in SI units, with its source."""

    value: float = field(metadata=ABSENT)
    source: str = ""
    note: str = ""


@frozen
class FigureInfo:
    """Declaration of a field of `Chip` that is a figure; every such field may be an array.

    label: its name in tables.  unit: SI unit; "1" for a plain number.  key: the key in a spec file, "" if the figure
    is derived.  per_dtype: the field maps dtypes to figures.
    """

    label: str
    unit: str
    key: str = ""
    per_dtype: bool = False


def figure(label: str, unit: str, key: str = "", factor: float = 1.0) -> Mapping[str, Any]:
    """Metadata for a field with one figure.  factor: one unit of the spec file in SI units."""
    in_file = stated(sourced(factor), key) if key else ABSENT
    return {"figure": FigureInfo(label=label, unit=unit, key=key), **in_file}


def figure_per_dtype(label: str, unit: str, key: str, factor: float, dtypes: Collection[str]) -> Mapping[str, Any]:
    """Metadata for a field with one figure per dtype."""
    in_file = stated(record.mapped(sourced(factor), dtypes), key)
    return {"figure": FigureInfo(label=label, unit=unit, key=key, per_dtype=True), **in_file}


def sourced(factor: float = 1.0) -> Form:
    """A figure with its source, in SI units; a user's own file may give a bare number.  factor: as of `figure`."""

    def form(entry: Any) -> Figure:
        if not isinstance(entry, Mapping):
            return Figure(value=IN_RANGE(entry) * factor, source="given by the user")
        found, beside = record.split(Figure, entry, beside={"value": record.anything}, required=("value",))
        return Figure(value=IN_RANGE(beside["value"]) * factor, **found)

    return form


#: Substitutes for a matrix dtype that a chip lacks, in order: bf16 and fp16 replace each other, others widen.
#: tf32 rounds fp32 to 19 bits, so it never replaces fp32; the vector units do.
WIDER: dict[str, tuple[str, ...]] = {
    "int1": ("int4", "int8", "bf16", "fp16", "fp32"),
    "int2": ("int4", "int8", "bf16", "fp16", "fp32"),
    "int3": ("int4", "int8", "bf16", "fp16", "fp32"),
    "int4": ("int8", "bf16", "fp16", "fp32"),
    "int6": ("int8", "bf16", "fp16", "fp32"),
    "int8": ("bf16", "fp16", "fp32"),
    "fp4": ("fp6", "fp8", "bf16", "fp16", "fp32"),
    "fp6": ("fp8", "bf16", "fp16", "fp32"),
    "fp8": ("bf16", "fp16", "fp32"),
    "fp16": ("bf16", "tf32", "fp32"),
    "bf16": ("fp16", "tf32", "fp32"),
    "tf32": ("fp32",),
    "fp32": (),
}
#: Dtypes with a rate.
RATE_DTYPES = ("fp64", *WIDER)
#: Host of a chip whose file names none: a server whose CPU rates are published.
DEFAULT_HOST = "xeon-8480-ddr5"

#: Key in Chip.links of the network between nodes (--network).
NETWORK = "network"
#: Name of the link of cards whose PCIe gives no peer-to-peer access: they exchange data through the host's memory.
HOST_PATH = "pcie-host"
#: Links to the host, the fastest first.
TO_HOST = ("nvlink-c2c", "pcie")


@frozen(eq=False)
class Link:
    """A connection between devices; bandwidth per direction [byte/s].  devices: most that it joins, 0 = unknown."""

    name: str
    bandwidth_bytes_per_s: Count = field(metadata=stated(sourced(1e9), "gb_per_s_per_direction"))
    devices: int = field(default=0, metadata=stated(lambda entry: int(sourced()(entry).value)))
    needs_bridge: bool = False


#: Name -> fields of a link, as spec files state them.
LINKS = record.mapped(partial(record.values, Link, given=("name",)))


@frozen(eq=False)
class Disk:
    """A disk of the host, with its sequential read and write rates [byte/s], and the rate of scattered reads [1/s];
    None if it is unknown."""

    name: str
    read_bytes_per_s: float = field(metadata=stated(sourced(1e9), "disk_read_gb_per_s"))
    write_bytes_per_s: float = field(metadata=stated(sourced(1e9), "disk_write_gb_per_s"))
    reads_per_s: float | None = field(default=None, metadata=stated(sourced(1e3), "disk_read_kiops"))


@frozen(eq=False)
class Host:
    """The computer that a device is attached to: the bandwidth of its memory [byte/s], and its CPU.

    cpu: None if its rates are unknown.  memory_bytes: capacity, None if unknown.  disk: stores tensors that do not fit
    in the host's memory.  devices: devices that share the host evenly.  link_share, memory_share, matrix_share: shares
    of the rates of a device's link, of the host's memory and of its CPU that are reached; weight_share: of its memory's
    where the CPU multiplies weights.  wait_s: time that a copy takes beside its bytes, where its receiver waits for it.
    sockets: CPUs that each store every tensor in their own memory, so that their rates add and their capacities do not;
    all other figures are those of one socket.
    """

    name: str
    bandwidth_bytes_per_s: float = field(metadata=stated(sourced(1e9), "memory_bandwidth_gb_per_s"))
    cpu: Chip | None = None
    memory_bytes: float | None = field(default=None, metadata=stated(sourced(2.0**30), "memory_capacity_gib"))
    disk: Disk | None = None
    devices: int = field(default=1, metadata=ABSENT)
    link_share: float = field(default=1.0, metadata=ABSENT)
    memory_share: float = field(default=1.0, metadata=ABSENT)
    matrix_share: float = field(default=1.0, metadata=ABSENT)
    weight_share: float = field(default=1.0, metadata=ABSENT)
    wait_s: float = field(default=0.0, metadata=ABSENT)
    sockets: int = field(default=1, metadata=ABSENT)


@frozen(eq=False)
class Chip:
    """One device.  Rates are dense data-sheet peaks; figures may be arrays of `points` hypothetical chips.

    None means unknown: the maker does not publish the figure.  power_limit_w: board power that an operator set, if any.
    hop_s, load_bytes_per_s: latency of a message between chips, and rate at which the operands that matrix units hold
    enter them, of machines whose programs are scheduled in advance (--spatial).
    basis: the real chip of a hypothetical one; kernels reach the share of the new figures that they reach of its own.
    """

    name: str
    title: str = field(metadata=stated(key="name"))
    maker: str = ""
    generation: str
    matrix_flops_per_s: Mapping[str, Count] = field(
        metadata=figure_per_dtype("dense matrix rate", "FLOP/s", "dense_tflops", 1e12, RATE_DTYPES)
    )
    vector_flops_per_s: Mapping[str, Count] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata=figure_per_dtype("vector rate", "FLOP/s", "vector_tflops", 1e12, RATE_DTYPES),
    )
    memory_bytes: Count = field(metadata=figure("memory", "byte", "memory_capacity_gib", 2.0**30))
    bandwidth_bytes_per_s: Count = field(metadata=figure("bandwidth", "byte/s", "memory_bandwidth_gb_per_s", 1e9))
    reported_memory_bytes: Count | None = field(
        default=None, metadata=figure("memory reported by the driver", "byte", "memory_reported_gib", 2.0**30)
    )
    l2_bytes: Count | None = field(
        default=None, metadata=figure("last-level cache", "byte", "l2_capacity_mib", 2.0**20)
    )
    l2_bandwidth_bytes_per_s: Count | None = field(
        default=None, metadata=figure("last-level cache bandwidth", "byte/s", "l2_bandwidth_gb_per_s", 1e9)
    )
    on_chip_bytes_per_unit: Count | None = field(
        default=None, metadata=figure("on-chip memory per unit", "byte", "on_chip_kib_per_unit", 2.0**10)
    )
    units: Count | None = field(default=None, metadata=figure("compute units", "1", "units"))
    clock_hz: Count | None = field(default=None, metadata=figure("clock", "Hz", "clock_ghz", 1e9))
    vector_clock_hz: Count | None = field(
        default=None, metadata=figure("vector-unit clock", "Hz", "vector_clock_ghz", 1e9)
    )
    sparse_speedup: Count = field(default=1.0, metadata=figure("2:4 sparsity", "x", "sparse_speedup"))
    fp16_accumulation_speedup: Count = field(
        default=1.0, metadata=figure("fp16 accumulation", "x", "fp16_accumulation_speedup")
    )
    special_ops_per_s: Count | None = field(default=None, metadata=figure("special functions", "op/s"))
    tdp_w: Count | None = field(default=None, metadata=figure("board power", "W", "tdp_w"))
    power_limit_w: float | None = field(default=None, metadata=ABSENT)
    hop_s: float = field(default=0.0, metadata=ABSENT)
    load_bytes_per_s: float = field(default=np.inf, metadata=ABSENT)
    basis: Chip | None = None
    links: Mapping[str, Link] = field(default_factory=dict, metadata=stated(LINKS))
    default_link: str = ""
    default_host: str = ""
    host: Host | None = None
    aliases: tuple[str, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    path: str = ""
    points: int = field(init=False)

    def compute_dtype(self, wanted: str) -> str:
        """The matrix dtype that runs a product of class `wanted`: itself, else the chip's next wider dtype."""
        rates = self.matrix_flops_per_s
        for name in (wanted, *WIDER.get(wanted, ())):
            if name in rates:
                return name
        if wanted == "fp32" and "fp32" in self.vector_flops_per_s:
            return "fp32"
        have = ", ".join(sorted(rates)) or "none"
        raise UserError(f"{self.name} has no matrix rate for '{wanted}' nor a wider one; it has: {have}")

    def matrix_rate(self, wanted: str) -> Count:
        """Dense FLOP/s of the units that run a product of class `wanted`."""
        name = self.compute_dtype(wanted)
        rates = self.matrix_flops_per_s
        return rates[name] if name in rates else self.vector_flops_per_s[name]

    def accumulating_in_fp16(self) -> Chip:
        """The chip with the rates of 16-bit products that sum in fp16, where they are others."""
        speedup, rates = self.fp16_accumulation_speedup, dict(self.matrix_flops_per_s)
        if np.all(speedup == 1.0):
            return self
        figures = dict(self.figures)
        for name in rates.keys() & {"bf16", "fp16"}:
            rates[name] *= speedup
            if known := figures.get(f"matrix_flops_per_s.{name}"):
                figures[f"matrix_flops_per_s.{name}"] = replace(known, note="times fp16_accumulation_speedup")
        basis = self.basis and self.basis.accumulating_in_fp16()
        return replace(self, matrix_flops_per_s=rates, fp16_accumulation_speedup=1.0, basis=basis, figures=figures)

    @property
    def usual_host(self) -> str:
        """Name of the host in which the chip usually stands: a desktop of a gaming card."""
        return self.default_host or DEFAULT_HOST

    @property
    def real(self) -> Chip:
        """The chip whose figures are those of a data sheet: this one, or the basis of a hypothetical one."""
        return self if self.basis is None else self.basis

    @property
    def power_w(self) -> Count | None:
        """Most power that the board draws [W]: its limit, else what the data sheet says."""
        return self.tdp_w if self.power_limit_w is None else self.power_limit_w

    @property
    def link_rate(self) -> Count | None:
        """Bandwidth per direction of the link that collectives use [byte/s]; None if there is no link."""
        link = self.links.get(self.default_link)
        return None if link is None else link.bandwidth_bytes_per_s

    @property
    def network_rate(self) -> Count | None:
        """Bandwidth per direction of the network between nodes [byte/s]; None if no network is set."""
        network = self.links.get(NETWORK)
        return None if network is None else network.bandwidth_bytes_per_s

    @property
    def host_link_rate(self) -> Count | None:
        """Bandwidth per direction of the link to the host [byte/s]; None if unknown."""
        return next((self.links[name].bandwidth_bytes_per_s for name in TO_HOST if name in self.links), None)

    @property
    def near(self) -> float:
        """Devices that the default link joins; inf if no limit is published."""
        link = self.links.get(self.default_link)
        return float(link.devices) if link is not None and link.devices else np.inf

    @property
    def through_host(self) -> bool:
        """Whether devices exchange data through the host's memory, for lack of peer-to-peer access."""
        return self.default_link == HOST_PATH

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", max(np.size(figure) for figure in self._arrays()))

    def spread(self, index: Array) -> Chip:
        """The chip of every forward pass: array figures at `index`, the number of the chip that runs the pass."""
        if self.points == 1:
            return self
        taken = index.astype(int)
        changed: dict[str, Any] = {
            name: _taken(getattr(self, name), taken) for name in FIGURES if name not in PER_DTYPE
        }
        for name in PER_DTYPE:
            changed[name] = {dtype: _taken(rate, taken) for dtype, rate in getattr(self, name).items()}
        links = {
            name: replace(link, bandwidth_bytes_per_s=_taken(link.bandwidth_bytes_per_s, taken))
            for name, link in self.links.items()
        }
        return replace(self, **changed, links=links)

    def _arrays(self) -> Iterator[Any]:
        """Every figure that may be an array, also per dtype and per link."""
        for name in FIGURES:
            value = getattr(self, name)
            yield from value.values() if name in PER_DTYPE else (value,)
        yield from (link.bandwidth_bytes_per_s for link in self.links.values())

    def vector_rate(self, wanted: str = "fp32") -> Count | None:
        """FLOP/s of the vector units for `wanted`, else for fp32; None if unknown."""
        return self.vector_flops_per_s.get(wanted, self.vector_flops_per_s.get("fp32"))


def _taken(figure: Any, index: npt.NDArray[np.intp]) -> Any:
    """The figure at `index` if it is an array, else the figure itself."""
    return figure[index] if isinstance(figure, np.ndarray) and figure.size > 1 else figure


#: Field of Chip -> declaration of its figure.
FIGURES: dict[str, FigureInfo] = {
    entry.name: entry.metadata["figure"] for entry in fields(Chip) if "figure" in entry.metadata
}
PER_DTYPE = tuple(name for name, info in FIGURES.items() if info.per_dtype)
