"""Operators of recorded kernels: alignment with the graph of the pass, mended where engines run in another order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmviewer.calibrate.diagnosis.alignment import NONE, Places, align
from llmviewer.calibrate.diagnosis.patterns import kind_of
from llmviewer.calibrate.diagnosis.recording import Kernel
from llmviewer.calibrate.diagnosis.slots import Slot

#: Operators to either side among which a kernel that is out of order is placed.
REACH = 12
#: Kinds that may be part of any operator: conversions, copies, sums of numbers.
GENERAL = ("elementwise", "copy", "prepare", "residual")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assigned:
    """Kernels of a pass with their operators, one entry each.

    places: index of the operator, NONE if it cannot be told.  beside: a kernel of a general kind stands beside the
    operator's own kernel, which does all of the operator's work.
    """

    places: Places
    beside: npt.NDArray[np.bool_]


def assigned(kernels: Sequence[Kernel], slots: Sequence[Slot], *, open_start: float, open_end: float) -> Assigned:
    """The operators that the kernels of a pass run.  open_start, open_end: as for `align`."""
    kinds = [kind_of(kernel.name) for kernel in kernels]
    all_slots = [*slots] * _repeats(kinds, slots)
    found = align(kinds, all_slots, open_start=open_start, open_end=open_end)
    _mend(found, kinds, all_slots)
    _sort_experts(found, kinds, all_slots)
    _join_fills(found, kernels, kinds)
    whole = {place for place, kind in zip(found.tolist(), kinds, strict=True) if _runs(kind, place, all_slots)}
    beside = [kind in GENERAL and int(place) in whole for place, kind in zip(found, kinds, strict=True)]
    places = np.where(found == NONE, NONE, found % len(slots)).astype(np.int32)
    return Assigned(places=places, beside=np.array(beside))


def _runs(kind: str, place: int, slots: Sequence[Slot]) -> bool:
    """Whether a kernel of a kind does the work of the operator at a place."""
    return place != NONE and kind in slots[place].kind.main


def _repeats(kinds: Sequence[str], slots: Sequence[Slot]) -> int:
    """Passes among the kernels, by the number of attention kernels: several where nothing marks them."""
    attending = sum("attention" in slot.kind.main and slot.kind.missing >= 4.0 for slot in slots)
    return max(1, round(kinds.count("attention") / attending)) if attending else 1


def _mend(found: Places, kinds: Sequence[str], slots: Sequence[Slot]) -> None:
    """Place kernels without an operator on an operator nearby, of the same layer, that no kernel runs."""
    taken = {place for place, kind in zip(found.tolist(), kinds, strict=True) if _runs(kind, place, slots)}
    for position in np.flatnonzero(found == NONE).tolist():
        kind = kinds[position]
        around = [int(place) for place in _neighbours(found, position)]
        if not kind or not around:
            continue
        near = sorted(_near(around, len(slots)), key=lambda place: min(abs(place - other) for other in around))
        layers = {slots[place].layer for place in around}
        near = [place for place in near if slots[place].layer in layers]
        free = [place for place in near if _runs(kind, place, slots) and place not in taken]
        beside = [place for place in near if kind in slots[place].kind.parts]
        if free or beside:
            found[position] = (free or beside)[0]
            if free:
                taken.add(free[0])


def _sort_experts(found: Places, kinds: Sequence[str], slots: Sequence[Slot]) -> None:
    """Put the products of experts in the order of their layer: all engines run gate and up before down."""
    layers: dict[int, list[int]] = {}
    for position in np.flatnonzero(found != NONE).tolist():
        if kinds[position] == "experts":
            layers.setdefault(slots[found[position]].layer, []).append(position)
    for positions in layers.values():
        found[positions] = np.sort(found[positions])


def _neighbours(found: Places, position: int) -> Iterator[int]:
    """Operators of the nearest placed kernels before and after a position."""
    before = np.flatnonzero(found[:position] != NONE)
    after = np.flatnonzero(found[position + 1 :] != NONE)
    if before.size:
        yield found[before[-1]]
    if after.size:
        yield found[position + 1 + after[0]]


def _near(around: Sequence[int], count: int) -> range:
    return range(max(min(around) - REACH, 0), min(max(around) + REACH + 1, count))


def _join_fills(found: Places, kernels: Sequence[Kernel], kinds: Sequence[str]) -> None:
    """Give the fill of a workspace before a matrix product to that product."""
    for position in range(len(kernels) - 1):
        if kinds[position] == "copy" and kinds[position + 1] == "matmul" and "memset" in kernels[position].name.lower():
            found[position] = found[position + 1]
