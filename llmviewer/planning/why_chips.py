"""Chips between two chips: groups of figures taken from one of them, as one chip with arrays; figures set by runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmviewer.core.frozen import frozen
from llmviewer.hardware.chip import FIGURES, PER_DTYPE, Chip
from llmviewer.hardware.hypothetical import GROUPS, SCALARS, TWINS, figure_of

#: Group of figures -> fields of Chip, each in one group.  What kernels attain is looked up by name and generation.
CHIP_GROUPS: Mapping[str, tuple[str, ...]] = {
    "bandwidth": ("bandwidth_bytes_per_s", "load_bytes_per_s"),
    "peak": ("matrix_flops_per_s", "sparse_speedup", "fp16_accumulation_speedup", "units", "clock_hz"),
    "capacity": ("memory_bytes", "reported_memory_bytes"),
    "vector units": ("vector_flops_per_s", "vector_clock_hz", "special_ops_per_s"),
    "L2": ("l2_bytes", "l2_bandwidth_bytes_per_s", "on_chip_bytes_per_unit"),
    "links": ("links", "default_link", "hop_s"),
    "host": ("host", "default_host"),
    "kernels": ("name", "maker", "generation", "tdp_w", "power_limit_w", "basis"),
}
#: Fields that change no number; they go with the kernels.
DESCRIPTION = ("title", "aliases", "figures", "path")
#: Groups of which some rules read a number only once for all chips of an array (engines by capacity, the host).
NOT_STACKED = ("capacity", "host", "kernels")


def _peak(chip: Chip) -> Any:
    """The 16-bit matrix rate, the highest rate of a chip without one [FLOP/s]."""
    rates = chip.matrix_flops_per_s
    return next((rates[name] for name in ("bf16", "fp16") if name in rates), max(rates.values(), default=None))


#: Group -> the figure that stands for it in tables.
SHOWN: Mapping[str, Callable[[Chip], Any]] = {
    "bandwidth": lambda chip: chip.bandwidth_bytes_per_s,
    "peak": _peak,
    "capacity": lambda chip: chip.memory_bytes,
    "vector units": lambda chip: chip.vector_rate(),
    "L2": lambda chip: chip.l2_bytes,
    "links": lambda chip: chip.link_rate,
    "host": lambda chip: None if chip.host is None else chip.host.name,
    "kernels": lambda chip: chip.name,
}


def differing(a: Chip, b: Chip) -> list[str]:
    """Groups with a field that differs."""
    return [
        group
        for group, names in CHIP_GROUPS.items()
        if any(_told(getattr(a, name)) != _told(getattr(b, name)) for name in names)
    ]


def _told(value: Any) -> str:
    """The figures of a field as text, which is the same for all kinds of mappings."""
    return repr(dict(value) if isinstance(value, Mapping) else value)


def hybrid(a: Chip, b: Chip, taken: frozenset[str]) -> Chip:
    """The chip with these groups of figures of b, and all others of a."""
    names = [name for group, fields in CHIP_GROUPS.items() if group in taken for name in fields]
    names += DESCRIPTION if "kernels" in taken else ()
    return replace(a, **{name: getattr(b, name) for name in names})


def structure(chip: Chip) -> Hashable:
    """Everything about the figures of a chip that an array of chips must share: which are known, of which links."""
    known = [getattr(chip, name) is not None for name in FIGURES]
    dtypes = [tuple(getattr(chip, name)) for name in PER_DTYPE]
    links = [(name, link.devices, link.needs_bridge) for name, link in chip.links.items()]
    return (tuple(known), tuple(dtypes), tuple(links), chip.default_link)


def stacked(chips: Sequence[Chip]) -> Chip:
    """One chip whose figures are arrays with an entry per chip; all chips have one structure."""
    first = chips[0]
    changed: dict[str, Any] = {
        name: _column([getattr(chip, name) for chip in chips]) for name in FIGURES if name not in PER_DTYPE
    }
    for name in PER_DTYPE:
        changed[name] = {
            dtype: _column([getattr(chip, name)[dtype] for chip in chips]) for dtype in getattr(first, name)
        }
    changed["links"] = {
        name: replace(link, bandwidth_bytes_per_s=_column([chip.links[name].bandwidth_bytes_per_s for chip in chips]))
        for name, link in first.links.items()
    }
    return replace(first, **changed)


def _column(values: Sequence[Any]) -> Any:
    """The values as an array, or the only one that all chips have."""
    return values[0] if all(value == values[0] for value in values) else np.array(values, dtype=np.float64)


#: Figures that some rules read only once for all chips of an array.
READ_ONCE = ("power",)


@frozen(eq=False)
class Chips:
    """The chips of two runs and those between them.

    own: figures that a run sets, such as peak.fp8; each is a factor beside the groups of figures.
    """

    a: Chip
    b: Chip
    own: tuple[str, ...] = ()

    @property
    def factors(self) -> dict[str, tuple[Any, Any]]:
        """Groups and figures that differ, by name, with the values of both chips."""
        others = differing(self.a, with_figures_of(self.b, self.a, self.own, self.own))
        found = {name: (SHOWN[name](self.a), SHOWN[name](self.b)) for name in others}
        changed = [name for name in self.own if differing(self.a, with_figures_of(self.a, self.b, [name], self.own))]
        return {**found, **{name: (figure_of(self.a, name), figure_of(self.b, name)) for name in changed}}

    @property
    def stacked(self) -> frozenset[str]:
        """Factors in which the chips of one array may differ."""
        return frozenset({*CHIP_GROUPS, *self.own}.difference(NOT_STACKED, READ_ONCE))

    def between(self, taken: frozenset[str]) -> Chip:
        """The chip with some groups and figures of b, and all others of a."""
        chip = with_figures_of(hybrid(self.a, self.b, taken), self.a, self.own, self.own)
        return with_figures_of(chip, self.b, [name for name in self.own if name in taken], self.own)


def chips_of_two(a: Chip, b: Chip, named: Collection[str]) -> Chips:
    """Two chips with the figures that a run sets.  named: these figures.

    A hypothetical chip has a real one as its basis; so that both have one, a real chip is its own.
    """
    if named:
        a, b = (replace(chip, basis=chip.real) for chip in (a, b))
    return Chips(a=a, b=b, own=tuple(name for name in dict.fromkeys(named) if name not in CHIP_GROUPS))


def with_figures_of(chip: Chip, other: Chip, names: Collection[str], own: Collection[str]) -> Chip:
    """The chip with some figures of another one; without those that the other lacks.

    own: all figures that are factors.  A 16-bit matrix rate takes the other one along, unless that is a factor too.
    """
    for name in names:
        if name in SCALARS:
            chip = replace(chip, **{SCALARS[name][0]: getattr(other, SCALARS[name][0])})
            continue
        group, _, member = name.partition(".")
        twin = TWINS.get(member, member) if group == "peak" else member
        members = {member} if f"peak.{twin}" in own else {member, twin}
        field = GROUPS[group]
        changed: dict[str, Any] = {field: _with_members(getattr(chip, field), getattr(other, field), members)}
        chip = replace(chip, **changed)
    return chip


def _with_members(own: Mapping[str, Any], other: Mapping[str, Any], members: set[str]) -> dict[str, Any]:
    """A mapping with some members of another one, in the order of both."""
    sources = {name: other if name in members else own for name in dict.fromkeys((*own, *other))}
    return {name: source[name] for name, source in sources.items() if name in source}
