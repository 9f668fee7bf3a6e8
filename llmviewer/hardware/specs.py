"""Reading spec files of chips, networks, hosts and disks.  All units are converted to SI here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from llmviewer.core import data
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.files import CacheOfFiles
from llmviewer.hardware.chip import FIGURES, WIDER, Chip, Disk, Host, Link
from llmviewer.hardware.figures import Figure

#: Key of a spec file with one figure, and with one figure per dtype -> (field of Chip, factor to SI).
SCALAR_KEYS = {info.key: (name, info.factor) for name, info in FIGURES.items() if info.key and not info.per_dtype}
RATE_KEYS = {info.key: (name, info.factor) for name, info in FIGURES.items() if info.per_dtype}
#: Keys that are not figures, and figures used only for cross-checks or derivations.
OTHER_KEYS = (
    "name",
    "maker",
    "generation",
    "sheet",
    "sources",
    "links",
    "default_link",
    "default_host",
    "special_per_unit_cycle",
    "matrix_flop_per_unit_cycle",
)
#: Range of a figure in the units of spec files; outside it products may exceed the range of float64.
MAX_FIGURE = 1e15
MIN_FIGURE = 1e-6
#: Allowed keys of a figure and of a link, and dtypes with a rate.
FIGURE_KEYS = ("value", "source", "note")
LINK_KEYS = ("gb_per_s_per_direction", "devices", "needs_bridge")
RATE_DTYPES = ("fp64", *WIDER)
#: Folder of networks between nodes.
NETWORK_FOLDER = "hardware_specs/networks"
#: Folder of hosts and disks, and the allowed keys of their files.
HOST_FOLDER = "hardware_specs/hosts"
#: Rates of a CPU without a chip file: of its vector units, and of its matrix units if it has any.
CPU_KEYS = ("cpu_fp32_tflops", "cpu_amx_bf16_tflops")
HOST_KEYS = ("memory_bandwidth_gb_per_s", "memory_capacity_gib", "cpu", *CPU_KEYS, "name", "sheet")
DISK_KEYS = ("disk_read_gb_per_s", "disk_write_gb_per_s", "disk_read_kiops", "name", "sheet")
#: Chips by name or path.
_CHIPS: CacheOfFiles[Chip] = CacheOfFiles()
REQUIRED_KEYS = ("name", "generation", "dense_tflops", "memory_capacity_gib", "memory_bandwidth_gb_per_s")


def load(name: str) -> Chip:
    """The chip called `name` (stem or alias in hardware_specs/), or in the YAML file at that path."""
    return _CHIPS.get(name, lambda: _read(name))


def _read(name: str) -> Chip:
    path, stem, aliases = data.find("hardware_specs", name, "chip")
    return parse(data.read_yaml(path), stem=stem, aliases=aliases, path=data.display_path(path))


def from_fields(fields: Mapping[str, Any]) -> Chip:
    """The chip with these fields of a spec file; its name in lower case with hyphens is the stem."""
    name = _text(fields, "name", "hardware")
    return parse(fields, stem="-".join(name.lower().split()) or "chip")


def network(name: str) -> tuple[Link, Figure]:
    """The network called `name` (stem in hardware_specs/networks/, or path of a YAML file), and its bandwidth."""
    path = data.user_path(name) if name.endswith(".yaml") else None
    if path is None and name not in network_names():
        raise unknown("network", name, network_names())
    where = path or data.folder(NETWORK_FOLDER) / f"{name}.yaml"
    spec = data.read_yaml(where)
    data.check_keys(spec, ("name", "sheet", "gb_per_s_per_direction"), ("gb_per_s_per_direction",), name)
    figure = _figure(spec["gb_per_s_per_direction"], 1e9, f"{name}: gb_per_s_per_direction")
    return Link(name=name, bandwidth_bytes_per_s=figure.value), figure


def network_names() -> list[str]:
    """Names of all networks (file stems)."""
    return data.stems(NETWORK_FOLDER)


def host(name: str) -> tuple[Host, Figure]:
    """The host called `name` (stem in hardware_specs/hosts/, or path of a YAML file), and its bandwidth.

    The field `cpu` of the file names the chip whose rates the CPU has; a CPU without a chip file has the rates of
    `cpu_fp32_tflops`, its vector units, and of `cpu_amx_bf16_tflops`, its matrix units.
    """
    spec = _host_file("host", name, host_names)
    data.check_keys(spec, HOST_KEYS, HOST_KEYS[:1], name)
    figure = _figure(spec[HOST_KEYS[0]], 1e9, f"{name}: {HOST_KEYS[0]}")
    size = spec.get(HOST_KEYS[1])
    return Host(
        name=name,
        bandwidth_bytes_per_s=figure.value,
        cpu=_cpu(spec, name, figure.value),
        memory_bytes=None if size is None else _figure(size, 2.0**30, f"{name}: {HOST_KEYS[1]}").value,
    ), figure


def _cpu(spec: Mapping[str, Any], name: str, bandwidth: float) -> Chip | None:
    """The CPU of a host: a chip file, or the rates in the file of the host; None if unknown."""
    chip = _text(spec, "cpu", name)
    if chip or CPU_KEYS[0] not in spec:
        return load(chip) if chip else None
    vector, *matrix = (_figure(spec[key], 1e12, f"{name}: {key}") for key in CPU_KEYS if key in spec)
    dtype, rate = ("bf16", matrix[0]) if matrix else ("fp32", vector)
    return Chip(
        name=name,
        title=name,
        maker="",
        generation="",
        matrix_flops_per_s={dtype: rate.value},
        vector_flops_per_s={"fp32": vector.value},
        memory_bytes=np.inf,
        bandwidth_bytes_per_s=bandwidth,
        figures={f"matrix_flops_per_s.{dtype}": rate, "vector_flops_per_s.fp32": vector},
    )


def disk(name: str) -> tuple[Disk, dict[str, Figure]]:
    """The disk called `name` (stem in hardware_specs/hosts/, or path of a YAML file), and the figures of its rates."""
    spec = _host_file("disk", name, disk_names)
    data.check_keys(spec, DISK_KEYS, DISK_KEYS[:2], name)
    read, write = (_figure(spec[key], 1e9, f"{name}: {key}") for key in DISK_KEYS[:2])
    figures = {"host.disk.read_bytes_per_s": read, "host.disk.write_bytes_per_s": write}
    found = Disk(name=name, read_bytes_per_s=read.value, write_bytes_per_s=write.value)
    if DISK_KEYS[2] not in spec:
        return found, figures
    scattered = _figure(spec[DISK_KEYS[2]], 1e3, f"{name}: {DISK_KEYS[2]}")
    return replace(found, reads_per_s=scattered.value), {**figures, "host.disk.reads_per_s": scattered}


def host_names() -> list[str]:
    """Names of all hosts: files with a memory bandwidth; the other files are disks."""
    return [
        stem
        for stem in data.stems(HOST_FOLDER)
        if HOST_KEYS[0] in data.read_yaml(data.folder(HOST_FOLDER) / f"{stem}.yaml")
    ]


def disk_names() -> list[str]:
    """Names of all disks (file stems)."""
    return [
        stem
        for stem in data.stems(HOST_FOLDER)
        if DISK_KEYS[0] in data.read_yaml(data.folder(HOST_FOLDER) / f"{stem}.yaml")
    ]


def _host_file(noun: str, name: str, known: Callable[[], list[str]]) -> Mapping[str, Any]:
    """The mapping in the file of a host or disk."""
    path = data.user_path(name) if name.endswith(".yaml") else None
    if path is None and name not in (names := known()):
        raise unknown(noun, name, names)
    return data.read_yaml(path or data.folder(HOST_FOLDER) / f"{name}.yaml")


def names() -> list[str]:
    """Names of all chips (file stems)."""
    return data.stems("hardware_specs")


def parse(spec: Mapping[str, Any], *, stem: str, aliases: tuple[str, ...] = (), path: str = "") -> Chip:
    """The chip described by the mapping of its YAML file."""
    where = path or stem
    known = {*SCALAR_KEYS, *RATE_KEYS, *OTHER_KEYS}
    data.check_keys(spec, known, REQUIRED_KEYS, where)
    figures: dict[str, Figure] = {}
    fields: dict[str, Any] = {}
    for key, (target, factor) in SCALAR_KEYS.items():
        if key in spec:
            figures[target] = figure = _figure(spec[key], factor, f"{where}: {key}")
            fields[target] = figure.value
    for key, (target, factor) in RATE_KEYS.items():
        values: dict[str, float] = {}
        rates = _mapping(spec.get(key, {}), f"{where}: {key}", RATE_DTYPES)
        for dtype, entry in rates.items():
            figures[f"{target}.{dtype}"] = figure = _figure(entry, factor, f"{where}: {key}.{dtype}")
            values[dtype] = figure.value
        fields[target] = MappingProxyType(values)
    special = _special(spec, fields, where)
    if special is not None:
        figures["special_ops_per_s"] = special
        fields["special_ops_per_s"] = special.value
    return Chip(
        name=stem,
        title=_text(spec, "name", where),
        maker=_text(spec, "maker", where),
        generation=_text(spec, "generation", where),
        links=MappingProxyType(_links(spec, where, figures)),  # chips are cached, so a caller must not change them
        default_link=spec.get("default_link") or "",
        default_host=_text(spec, "default_host", where),
        aliases=aliases,
        figures=MappingProxyType(figures),
        path=path,
        **fields,
    )


def _special(spec: Mapping[str, Any], fields: Mapping[str, Any], where: str) -> Figure | None:
    """Exponentials per second: per unit and cycle x units x clock; None unless all three are published.

    The special-function units run at the clock of the vector units, which on some chips is higher than that of the
    tensor cores (H100: 1.98 and 1.83 GHz); an upper bound uses the higher clock.
    """
    key = "special_per_unit_cycle"
    clock = fields.get("vector_clock_hz", fields.get("clock_hz"))
    if key not in spec or "units" not in fields or clock is None:
        return None
    figure = _figure(spec[key], float(fields["units"]) * float(clock), f"{where}: {key}")
    derived = f"{figure.value / fields['units'] / clock:g} per cycle x {fields['units']:g} units x {clock / 1e9:g} GHz"
    return replace(figure, note=f"{derived}; {figure.note}".removesuffix("; "))


def _links(spec: Mapping[str, Any], where: str, figures: dict[str, Figure]) -> dict[str, Link]:
    links: dict[str, Link] = {}
    for name, entry in _mapping(spec.get("links", {}), f"{where}: links").items():
        at = f"{where}: links.{name}"
        link = _mapping(entry, at, LINK_KEYS)
        figure = _figure(link.get("gb_per_s_per_direction"), 1e9, f"{at}.gb_per_s_per_direction")
        figures[f"links.{name}.bandwidth_bytes_per_s"] = figure
        devices = _figure(link["devices"], 1.0, f"{at}.devices").value if "devices" in link else 0
        needs_bridge = link.get("needs_bridge", False)
        if not isinstance(needs_bridge, bool):
            raise UserError(f"{at}.needs_bridge: expected true or false, got {quoted(needs_bridge)}")
        links[name] = Link(
            name=name,
            bandwidth_bytes_per_s=figure.value,
            devices=int(devices),
            needs_bridge=needs_bridge,
        )
    default = spec.get("default_link")
    if default is not None and default not in tuple(links):
        raise unknown("default_link", default, links, where=where)
    return links


def _mapping(value: Any, where: str, known: Collection[str] = ()) -> Mapping[str, Any]:
    """`value` if it is a mapping, with keys only from `known` if these are given."""
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: expected a mapping, got {quoted(value)}")
    if known:
        data.check_keys(value, known, (), where)
    return value


def _text(spec: Mapping[str, Any], key: str, where: str) -> str:
    value = spec.get(key, "")
    if not isinstance(value, str):
        raise UserError(f"{where}: {key}: expected text, got {quoted(value)}")
    return value


def _figure(entry: Any, factor: float, where: str) -> Figure:
    """A figure in SI units; a user's own file may give a bare number without source."""
    value = _mapping(entry, where, FIGURE_KEYS).get("value") if isinstance(entry, Mapping) else entry
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not MIN_FIGURE <= value < MAX_FIGURE:
        raise UserError(f"{where}: expected a positive number (1e-6 to 1e15), got {quoted(value)}")
    source = str(entry.get("source", "")) if isinstance(entry, Mapping) else "given by the user"
    note = str(entry.get("note", "")) if isinstance(entry, Mapping) else ""
    return Figure(value=float(value) * factor, source=source, note=note)
