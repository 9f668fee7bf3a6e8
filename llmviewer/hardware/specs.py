"""Reading spec files of chips, networks, hosts and disks.  All units are converted to SI here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from llmviewer.core import data
from llmviewer.core.errors import unknown
from llmviewer.core.files import CacheOfFiles
from llmviewer.hardware import names as names_of_chips
from llmviewer.hardware.chip import HOST_PATH, PER_DTYPE, RATE_DTYPES, Chip, Disk, Figure, Host, Link, sourced
from llmviewer.language import record
from llmviewer.language.record import Form

#: Keys of the spec of a chip beside its fields: pages, and figures for cross-checks and derivations.
CHIP_KEYS: Mapping[str, Form] = {
    "sheet": record.text,
    "sources": record.anything,
    "special_per_unit_cycle": sourced(),
    "matrix_flop_per_unit_cycle": record.mapped(sourced(), RATE_DTYPES),
}
#: Folder of networks between nodes.
NETWORK_FOLDER = "hardware_specs/networks"
#: Folder of hosts and disks, and the key that tells each from the other.
HOST_FOLDER = "hardware_specs/hosts"
HOST_KEY, DISK_KEY = "memory_bandwidth_gb_per_s", "disk_read_gb_per_s"
#: The disk of a host of which none is named: a fast one.
DEFAULT_DISK = "samsung-pm1743"
#: Rates of a CPU without a chip file: of its vector units, and of its matrix units if it has any.
CPU_KEYS = ("cpu_fp32_tflops", "cpu_amx_bf16_tflops")
#: Name and page of the spec of anything but a chip.
NAMED: Mapping[str, Form] = {"name": record.text, "sheet": record.text}
#: Chips by name or path.
_CHIPS: CacheOfFiles[Chip] = CacheOfFiles()


def load(name: str) -> Chip:
    """The chip called `name` (`names.find`), or in the YAML file at that path."""
    return _CHIPS.get(name, lambda: _read(name))


def _read(name: str) -> Chip:
    path, stem, is_known = names_of_chips.find(name)
    aliases = data.aliases(names_of_chips.FOLDER).get(stem, ()) if is_known else ()
    return parse(data.read_yaml(path), stem=stem, aliases=aliases, path=data.display_path(path))


def from_fields(fields: Mapping[str, Any]) -> Chip:
    """The chip with these fields of a spec file; its name in lower case with hyphens is the stem."""
    name = record.at("hardware: name", record.text, fields.get("name", ""))
    return parse(fields, stem="-".join(name.lower().split()) or "chip")


def network(name: str) -> tuple[Link, Figure]:
    """The network called `name` (stem in hardware_specs/networks/, or path of a YAML file), and its bandwidth."""
    return network_of(name, _spec("network", name, NETWORK_FOLDER, network_names))


def network_of(name: str, spec: Mapping[str, Any]) -> tuple[Link, Figure]:
    """A network, and its bandwidth, from the mapping of its YAML file."""
    found = record.values(Link, spec, name, beside=NAMED, given=("name", "devices", "needs_bridge"))
    figure = found["bandwidth_bytes_per_s"]
    return Link(name=name, bandwidth_bytes_per_s=figure.value), figure


def network_names() -> list[str]:
    """Names of all networks (file stems)."""
    return data.stems(NETWORK_FOLDER)


def host(name: str) -> tuple[Host, Figure]:
    """The host called `name` (stem in hardware_specs/hosts/, or path of a YAML file), and its bandwidth.

    The field `cpu` of the file names the chip whose rates the CPU has; a CPU without a chip file has the rates of
    `cpu_fp32_tflops`, its vector units, and of `cpu_amx_bf16_tflops`, its matrix units.
    """
    return host_of(name, _spec("host", name, HOST_FOLDER, host_names))


def host_of(name: str, spec: Mapping[str, Any]) -> tuple[Host, Figure]:
    """A host, and the bandwidth of its memory, from the mapping of its YAML file."""
    beside = {**NAMED, "cpu": record.text, **dict.fromkeys(CPU_KEYS, sourced(1e12))}
    found, stated = record.split(Host, spec, name, beside=beside, given=("name",))
    figure = found["bandwidth_bytes_per_s"]
    return Host(name=name, cpu=_cpu(stated, name, figure.value), **_numbers(found, {})), figure


def _cpu(stated: Mapping[str, Any], name: str, bandwidth: float) -> Chip | None:
    """The CPU of a host: a chip file, or the rates in the file of the host; None if unknown."""
    if stated.get("cpu") or CPU_KEYS[0] not in stated:
        return load(stated["cpu"]) if stated.get("cpu") else None
    vector, *matrix = (stated[key] for key in CPU_KEYS if key in stated)
    dtype, rate = ("bf16", matrix[0]) if matrix else ("fp32", vector)
    return Chip(
        name=name,
        title=name,
        generation="",
        matrix_flops_per_s={dtype: rate.value},
        vector_flops_per_s={"fp32": vector.value},
        memory_bytes=np.inf,
        bandwidth_bytes_per_s=bandwidth,
        figures={f"matrix_flops_per_s.{dtype}": rate, "vector_flops_per_s.fp32": vector},
    )


def disk(name: str) -> tuple[Disk, dict[str, Figure]]:
    """The disk called `name` (stem in hardware_specs/hosts/, or path of a YAML file), and the figures of its rates."""
    return disk_of(name, _spec("disk", name, HOST_FOLDER, disk_names))


def disk_of(name: str, spec: Mapping[str, Any]) -> tuple[Disk, dict[str, Figure]]:
    """A disk, and the figures of its rates, from the mapping of its YAML file."""
    found = record.values(Disk, spec, name, beside=NAMED, given=("name",))
    figures: dict[str, Figure] = {}
    return Disk(name=name, **_numbers(found, figures, "host.disk.")), figures


def host_names() -> list[str]:
    """Names of all hosts: files with a memory bandwidth; the other files are disks."""
    return _with_key(HOST_KEY)


def disk_names() -> list[str]:
    """Names of all disks (file stems)."""
    return _with_key(DISK_KEY)


def _with_key(key: str) -> list[str]:
    """Stems of the files of hosts and disks that state a key."""
    folder = data.folder(HOST_FOLDER)
    return [stem for stem in data.stems(HOST_FOLDER) if key in data.read_known_yaml(folder / f"{stem}.yaml")]


def _spec(noun: str, name: str, folder: str, known: Callable[[], list[str]]) -> Mapping[str, Any]:
    """The mapping in a file of a folder, or in the user's own YAML file at the path `name`."""
    path = data.user_path(name) if name.endswith(".yaml") else None
    if path is None and name not in (names := known()):
        raise unknown(noun, name, names)
    return data.read_known_yaml(path or data.folder(folder) / f"{name}.yaml")


def names() -> list[str]:
    """Names of all chips (file stems)."""
    return data.stems("hardware_specs")


def parse(spec: Mapping[str, Any], *, stem: str, aliases: tuple[str, ...] = (), path: str = "") -> Chip:
    """The chip described by the mapping of its YAML file."""
    where = path or stem
    own = ("name", "aliases", "path")
    found, beside = record.split(Chip, spec, where, beside=CHIP_KEYS, given=own)
    links = found.pop("links", {})
    if "pcie" in links and found.get("default_link") == HOST_PATH:
        links = {**links, HOST_PATH: links["pcie"]}
    if "default_link" in found and found["default_link"] not in links:
        raise unknown("default_link", found["default_link"], links, where=where)
    figures: dict[str, Figure] = {}
    fields = _numbers(found, figures)
    if special := _special(beside.get("special_per_unit_cycle"), fields):
        figures["special_ops_per_s"] = special
        fields["special_ops_per_s"] = special.value
    fields["links"] = MappingProxyType(  # chips are cached, so a caller must not change them
        {name: Link(name=name, **_numbers(link, figures, f"links.{name}.")) for name, link in links.items()}
    )
    return Chip(name=stem, aliases=aliases, path=path, figures=MappingProxyType(figures), **fields)


def _numbers(found: Mapping[str, Any], figures: dict[str, Figure], where: str = "") -> dict[str, Any]:
    """The values of a record with the numbers of its figures, which go to `figures` under their names after `where`.

    Those per dtype are the last.
    """
    numbers: dict[str, Any] = {}
    for name, value in sorted(found.items(), key=lambda item: item[0] in PER_DTYPE):
        if isinstance(value, Figure):
            figures[f"{where}{name}"] = value
            numbers[name] = value.value
        else:
            numbers[name] = MappingProxyType(_numbers(value, figures, f"{name}.")) if name in PER_DTYPE else value
    return numbers


def _special(per_cycle: Figure | None, fields: Mapping[str, Any]) -> Figure | None:
    """Exponentials per second: per unit and cycle x units x clock; None unless all three are published.

    The special-function units run at the clock of the vector units, which on some chips is higher than that of the
    tensor cores (H100: 1.98 and 1.83 GHz); an upper bound uses the higher clock.
    """
    clock = fields.get("vector_clock_hz", fields.get("clock_hz"))
    if per_cycle is None or "units" not in fields or clock is None:
        return None
    derived = f"{per_cycle.value:g} per cycle x {fields['units']:g} units x {clock / 1e9:g} GHz"
    return replace(
        per_cycle,
        value=per_cycle.value * (fields["units"] * clock),
        note=f"{derived}; {per_cycle.note}".removesuffix("; "),
    )
