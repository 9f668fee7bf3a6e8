"""Figures that runs set on their chips as factors of their own, and chips that take such figures from one another."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmviewer.hardware.chip import Chip
from llmviewer.hardware.hypothetical import GROUPS, SCALARS, TWINS, figure_of
from llmviewer.planning.why_chips import CHIP_GROUPS, NOT_STACKED, SHOWN, differing, hybrid

#: Figures that some rules read only once for all chips of an array.
READ_ONCE = ("power",)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
