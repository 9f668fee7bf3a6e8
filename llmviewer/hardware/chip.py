"""Chips and links: figures in SI units, and what stands in where a chip lacks a dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError

#: What stands in for a matrix dtype that a chip does not have: bf16 and fp16 for each other, everything else upward.
#: tf32 rounds fp32 to 19 bits: it never stands in for it; the vector units do.
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


#: Fields of Chip that may be arrays: one number each, and one per dtype.
SCALAR_FIGURES = (
    "bandwidth_bytes_per_s",
    "memory_bytes",
    "special_ops_per_s",
    "l2_bytes",
    "l2_bandwidth_bytes_per_s",
    "on_chip_bytes_per_unit",
    "units",
    "clock_hz",
    "sparse_speedup",
    "tdp_w",
)
RATE_FIGURES = ("matrix_flops_per_s", "vector_flops_per_s")
#: The link of Chip.links that joins groups of devices (--network).
NETWORK = "network"
#: Links to the host, the best first.
TO_HOST = ("nvlink-c2c", "pcie")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a spec sheet, in SI units, and where it stands."""

    value: float
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Link:
    """A connection between devices; bandwidth per direction [byte/s]."""

    name: str
    bandwidth_bytes_per_s: Count
    devices: int = 0
    needs_bridge: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Disk:
    """A disk of the computer beside a device: what it reads and writes one after another [byte/s]."""

    name: str
    read_bytes_per_s: float
    write_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Host:
    """The computer beside a device: its memory, and the CPU with its rates, None where they are unknown.

    memory_bytes: how much of it; None is unknown.  disk: what tensors are put on that it does not hold.
    devices: how many share it evenly.
    """

    name: str
    bandwidth_bytes_per_s: float
    cpu: Chip | None = None
    memory_bytes: float | None = None
    disk: Disk | None = None
    devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chip:
    """One device.  Rates are dense data-sheet peaks; any figure may be an array (hypothetical chips, `points` of them).

    None is `unknown`: the maker does not publish it.
    """

    name: str
    title: str
    maker: str
    generation: str
    matrix_flops_per_s: Mapping[str, Count]
    vector_flops_per_s: Mapping[str, Count]
    bandwidth_bytes_per_s: Count
    memory_bytes: Count
    special_ops_per_s: Count | None = None
    l2_bytes: Count | None = None
    l2_bandwidth_bytes_per_s: Count | None = None
    on_chip_bytes_per_unit: Count | None = None
    units: Count | None = None
    clock_hz: Count | None = None
    vector_clock_hz: Count | None = None
    sparse_speedup: Count = 1.0
    tdp_w: Count | None = None
    links: Mapping[str, Link] = field(default_factory=dict)
    default_link: str = ""
    host: Host | None = None
    aliases: tuple[str, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    path: str = ""
    points: int = field(init=False)

    def compute_dtype(self, wanted: str) -> str:
        """The matrix dtype that runs a product of class `wanted`: itself, else the next wider one the chip has."""
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

    @property
    def link_rate(self) -> Count | None:
        """Bytes per second and direction of the link that collectives use, None where there is none."""
        link = self.links.get(self.default_link)
        return None if link is None else link.bandwidth_bytes_per_s

    @property
    def network_rate(self) -> Count | None:
        """Bytes per second and direction beyond that link's reach, None where no network is given."""
        network = self.links.get(NETWORK)
        return None if network is None else network.bandwidth_bytes_per_s

    @property
    def host_link_rate(self) -> Count | None:
        """Bytes per second and direction of the link to the host, None where it is unknown."""
        return next((self.links[name].bandwidth_bytes_per_s for name in TO_HOST if name in self.links), None)

    @property
    def near(self) -> float:
        """Devices that the link joins; no bound where none is published."""
        link = self.links.get(self.default_link)
        return float(link.devices) if link is not None and link.devices else np.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", max(np.size(figure) for figure in self._figures().values()))

    def spread(self, index: Array) -> Chip:
        """The chip of every pass: array figures are taken at `index` (which chip runs the pass)."""
        arrays = {name: figure for name, figure in self._figures().items() if np.size(figure) > 1}
        if not arrays:
            return self
        taken = index.astype(int)
        changed: dict[str, Any] = {name: _taken(figure, taken) for name, figure in arrays.items() if "." not in name}
        for name in RATE_FIGURES:
            changed[name] = {dtype: _taken(rate, taken) for dtype, rate in getattr(self, name).items()}
        return replace(self, **changed)

    def _figures(self) -> dict[str, Count]:
        """All figures by name; rates as `field.dtype`."""
        figures = {name: getattr(self, name) for name in SCALAR_FIGURES if getattr(self, name) is not None}
        return figures | {f"{f}.{dtype}": rate for f in RATE_FIGURES for dtype, rate in getattr(self, f).items()}

    def vector_rate(self, wanted: str = "fp32") -> Count | None:
        """FLOP/s of the vector units, None where unknown."""
        return self.vector_flops_per_s.get(wanted, self.vector_flops_per_s.get("fp32"))


def _taken(figure: Count, index: npt.NDArray[np.intp]) -> Count:
    return figure[index] if isinstance(figure, np.ndarray) and figure.size > 1 else figure
