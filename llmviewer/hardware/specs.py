"""Spec files -> chips in SI units.  Prefixes are removed here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from llmviewer.core import data
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.hardware.chip import WIDER, Chip, Disk, Figure, Host, Link

__all__ = ["Chip", "Disk", "Figure", "Host", "Link", "load", "names", "parse"]

#: Keys of a chip file that hold one figure -> (field of Chip, factor to SI).
SCALARS: dict[str, tuple[str, float]] = {
    "memory_capacity_gib": ("memory_bytes", 2.0**30),
    "memory_bandwidth_gb_per_s": ("bandwidth_bytes_per_s", 1e9),
    "l2_capacity_mib": ("l2_bytes", 2.0**20),
    "l2_bandwidth_gb_per_s": ("l2_bandwidth_bytes_per_s", 1e9),
    "on_chip_kib_per_unit": ("on_chip_bytes_per_unit", 2.0**10),
    "units": ("units", 1.0),
    "clock_ghz": ("clock_hz", 1e9),
    "vector_clock_ghz": ("vector_clock_hz", 1e9),
    "sparse_speedup": ("sparse_speedup", 1.0),
    "tdp_w": ("tdp_w", 1.0),
}
#: Keys that hold a figure per dtype -> field of Chip, in 1e12 FLOP/s.
RATES = {"dense_tflops": "matrix_flops_per_s", "vector_tflops": "vector_flops_per_s"}
#: Keys that say something other than a figure, and figures that only the cross-check or a derivation uses.
OTHERS = (
    "name",
    "maker",
    "generation",
    "sheet",
    "sources",
    "links",
    "default_link",
    "special_per_unit_cycle",
    "matrix_flop_per_unit_cycle",
)
#: No figure in any unit is as large or as small; beyond them products leave the range of float64.
ABSURD = 1e15
MINUTE = 1e-6
#: What a figure and a link may hold, and the formats that units may multiply.
FIGURE = ("value", "source", "note")
LINK = ("gb_per_s_per_direction", "devices", "needs_bridge")
MULTIPLIED = ("fp64", *WIDER)
#: Where networks between groups of devices stand.
NETWORKS = "hardware_specs/networks"
#: The computers that hold devices, and what their files may say.
HOSTS = "hardware_specs/hosts"
HOST = ("memory_bandwidth_gb_per_s", "memory_capacity_gib", "cpu", "name", "sheet")
DISK = ("disk_read_gb_per_s", "disk_write_gb_per_s", "name", "sheet")
REQUIRED = ("name", "generation", "dense_tflops", "memory_capacity_gib", "memory_bandwidth_gb_per_s")


def load(name: str) -> Chip:
    """The chip called `name` (stem or alias in hardware_specs/), or described in the YAML file at that path."""
    path, stem, aliases = data.find("hardware_specs", name, "chip")
    return parse(data.read_yaml(path), stem=stem, aliases=aliases, path=data.shown_path(path))


def network(name: str) -> tuple[Link, Figure]:
    """The network called `name` (stem in hardware_specs/networks/), or described in the YAML file at that path."""
    path = data.own(name) if name.endswith(".yaml") else None
    if path is None and name not in network_names():
        raise unknown("network", name, network_names())
    where = path or data.folder(NETWORKS) / f"{name}.yaml"
    spec = data.read_yaml(where)
    data.check_keys(spec, ("name", "sheet", "gb_per_s_per_direction"), ("gb_per_s_per_direction",), name)
    figure = _figure(spec["gb_per_s_per_direction"], 1e9, f"{name}: gb_per_s_per_direction")
    return Link(name=name, bandwidth_bytes_per_s=figure.value), figure


def network_names() -> list[str]:
    """Stems of all networks."""
    return data.stems(NETWORKS)


def host(name: str) -> tuple[Host, Figure]:
    """The host called `name` (stem in hardware_specs/hosts/), or described in the YAML file at that path; and the
    figure of its bandwidth.  `cpu` in it names the chip that holds its rates."""
    spec = _beside("host", name, host_names)
    data.check_keys(spec, HOST, HOST[:1], name)
    figure = _figure(spec[HOST[0]], 1e9, f"{name}: {HOST[0]}")
    cpu, size = _text(spec, "cpu", name), spec.get(HOST[1])
    return Host(
        name=name,
        bandwidth_bytes_per_s=figure.value,
        cpu=load(cpu) if cpu else None,
        memory_bytes=None if size is None else _figure(size, 2.0**30, f"{name}: {HOST[1]}").value,
    ), figure


def disk(name: str) -> tuple[Disk, dict[str, Figure]]:
    """The disk called `name` (stem in hardware_specs/hosts/), or described in the YAML file at that path; and the
    figures of its rates."""
    spec = _beside("disk", name, disk_names)
    data.check_keys(spec, DISK, DISK[:2], name)
    read, write = (_figure(spec[key], 1e9, f"{name}: {key}") for key in DISK[:2])
    figures = {"host.disk.read_bytes_per_s": read, "host.disk.write_bytes_per_s": write}
    return Disk(name=name, read_bytes_per_s=read.value, write_bytes_per_s=write.value), figures


def host_names() -> list[str]:
    """Stems of all hosts with a memory; the others are disks."""
    return [stem for stem in data.stems(HOSTS) if HOST[0] in data.read_yaml(data.folder(HOSTS) / f"{stem}.yaml")]


def disk_names() -> list[str]:
    """Stems of all disks."""
    return [stem for stem in data.stems(HOSTS) if DISK[0] in data.read_yaml(data.folder(HOSTS) / f"{stem}.yaml")]


def _beside(what: str, name: str, known: Callable[[], list[str]]) -> Mapping[str, Any]:
    """The file of a host or disk."""
    path = data.own(name) if name.endswith(".yaml") else None
    if path is None and name not in (names := known()):
        raise unknown(what, name, names)
    return data.read_yaml(path or data.folder(HOSTS) / f"{name}.yaml")


def names() -> list[str]:
    """Stems of all chips."""
    return data.stems("hardware_specs")


def parse(spec: Mapping[str, Any], *, stem: str, aliases: tuple[str, ...] = (), path: str = "") -> Chip:
    """A chip from the mapping of its YAML file."""
    where = path or stem
    known = {*SCALARS, *RATES, *OTHERS}
    data.check_keys(spec, known, REQUIRED, where)
    figures: dict[str, Figure] = {}
    fields: dict[str, Any] = {}
    for key, (target, factor) in SCALARS.items():
        if key in spec:
            figures[target] = figure = _figure(spec[key], factor, f"{where}: {key}")
            fields[target] = figure.value
    for key, target in RATES.items():
        fields[target] = {}
        rates = _mapping(spec.get(key, {}), f"{where}: {key}", MULTIPLIED)
        for dtype, entry in rates.items():
            figures[f"{target}.{dtype}"] = figure = _figure(entry, 1e12, f"{where}: {key}.{dtype}")
            fields[target][dtype] = figure.value
    special = _special(spec, fields, where)
    if special is not None:
        figures["special_ops_per_s"] = special
        fields["special_ops_per_s"] = special.value
    return Chip(
        name=stem,
        title=_text(spec, "name", where),
        maker=_text(spec, "maker", where),
        generation=_text(spec, "generation", where),
        links=_links(spec, where, figures),
        default_link=spec.get("default_link") or "",
        aliases=aliases,
        figures=figures,
        path=path,
        **fields,
    )


def _special(spec: Mapping[str, Any], fields: Mapping[str, Any], where: str) -> Figure | None:
    """Exponentials per second: per unit and cycle x units x clock, where all three are published.

    The special-function units run at the clock of the vector units, which some chips drive higher than their tensor
    cores (H100: 1.98 against 1.83 GHz): a bound takes the higher one.
    """
    key = "special_per_unit_cycle"
    clock = fields.get("vector_clock_hz", fields.get("clock_hz"))
    if key not in spec or "units" not in fields or clock is None:
        return None
    figure = _figure(spec[key], float(fields["units"]) * float(clock), f"{where}: {key}")
    derived = f"{figure.value / fields['units'] / clock:g} a cycle x {fields['units']:g} units x {clock / 1e9:g} GHz"
    return replace(figure, note=f"{derived}; {figure.note}".removesuffix("; "))


def _links(spec: Mapping[str, Any], where: str, figures: dict[str, Figure]) -> dict[str, Link]:
    links: dict[str, Link] = {}
    for name, entry in _mapping(spec.get("links", {}), f"{where}: links").items():
        at = f"{where}: links.{name}"
        link = _mapping(entry, at, LINK)
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
    """A mapping; of the keys in `known`, where these are given."""
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
    """A sourced figure; a file of the user's own may give a bare number."""
    value = _mapping(entry, where, FIGURE).get("value") if isinstance(entry, Mapping) else entry
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not MINUTE <= value < ABSURD:
        raise UserError(f"{where}: expected a positive number (1e-6 to 1e15), got {quoted(value)}")
    source = str(entry.get("source", "")) if isinstance(entry, Mapping) else "given by the user"
    note = str(entry.get("note", "")) if isinstance(entry, Mapping) else ""
    return Figure(value=float(value) * factor, source=source, note=note)
