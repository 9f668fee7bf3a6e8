"""Figures of chips and of their hosts as terms, each with its data sheet."""

from __future__ import annotations

from copy import copy
from typing import Any

from llmviewer.core.terms import leaf
from llmviewer.hardware.chip import FIGURES, PER_DTYPE, Chip, Disk, Host
from llmviewer.timing.host_copies import SOURCES

#: Short names of figures.
WORDS = {
    "bandwidth_bytes_per_s": "peak_bandwidth", "l2_bandwidth_bytes_per_s": "l2_bandwidth", "memory_bytes": "memory",
    "special_ops_per_s": "special_rate", "matrix_flops_per_s": "matrix_rate", "vector_flops_per_s": "vector_rate",
}  # fmt: skip


def sheet(chip: Chip, key: str) -> str:
    """Source of a figure of the chip: the page of its data sheet, and its note."""
    figure = chip.figures.get(key)
    if figure is None:
        return f"figure of {chip.path or chip.name}"
    return f"{figure.source}{f' ({figure.note})' if figure.note else ''}"


def chip_of_terms(chip: Chip, prefix: str = "") -> Chip:
    """The chip with its figures as terms.  prefix: of their names, such as `host_` for the CPU of a host."""
    changed: dict[str, Any] = {}
    for name, info in FIGURES.items():
        value = getattr(chip, name)
        word = prefix + WORDS.get(name, name)
        if name in PER_DTYPE:
            changed[name] = {
                dtype: leaf(f"{dtype}_{word}", rate, info.unit, sheet(chip, f"{name}.{dtype}"))
                for dtype, rate in value.items()
            }
        else:
            unit = "" if info.unit in ("1", "x") else info.unit
            changed[name] = None if value is None else leaf(word, value, unit, sheet(chip, name))
    changed["links"] = {
        name: with_fields(link, bandwidth_bytes_per_s=leaf(
            f"{name.replace('-', '_')}_rate", link.bandwidth_bytes_per_s, "byte/s",
            sheet(chip, f"links.{name}.bandwidth_bytes_per_s"),
        )) for name, link in chip.links.items()
    }  # fmt: skip
    basis = chip.basis and chip_of_terms(chip.basis)
    made: Chip = with_fields(chip, **changed, basis=basis, host=chip.host and _host(chip, chip.host))
    return made


def _host(chip: Chip, host: Host) -> Host:
    """The host with its rates, and the shares of them that are reached, as terms."""
    changed: dict[str, Any] = {
        name: share if (share := getattr(host, name)) == 1.0 else leaf(name, share, "", source)
        for name, source in SOURCES.items()
    }
    rate = leaf("host_bandwidth", host.bandwidth_bytes_per_s, "byte/s", sheet(chip, "host.bandwidth_bytes_per_s"))
    cpu = host.cpu and chip_of_terms(host.cpu, "host_")
    made: Host = with_fields(host, cpu=cpu, bandwidth_bytes_per_s=rate, disk=_disk(chip, host.disk), **changed)
    return made


def _disk(chip: Chip, disk: Disk | None) -> Disk | None:
    """The disk with its rates as terms."""
    units = {"read_bytes_per_s": "byte/s", "write_bytes_per_s": "byte/s", "reads_per_s": "1/s"}
    return disk and with_fields(disk, **{
        name: leaf(f"disk_{name}", getattr(disk, name), unit, sheet(chip, f"host.disk.{name}"))
        for name, unit in units.items()
        if getattr(disk, name) is not None
    })  # fmt: skip


def with_fields(record: Any, **changed: Any) -> Any:
    """A copy of a record with other fields, of whatever type."""
    record = copy(record)
    for name, value in changed.items():
        object.__setattr__(record, name, value)
    return record
