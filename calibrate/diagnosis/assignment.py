"""Operators of recorded kernels: alignment with the graph of the pass, mended where engines run in another order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from llmviewer.calibrate.diagnosis.alignment import HEAVY, NONE, Places, align
from llmviewer.calibrate.diagnosis.patterns import kind_of
from llmviewer.calibrate.diagnosis.recording import Kernel
from llmviewer.calibrate.diagnosis.slots import SOFTMAX, TWINS, Slot, orders, with_others
from llmviewer.calibrate.diagnosis.variants import attends, with_unfused_attention

#: Operators to either side among which a kernel that is out of order is placed.
REACH = 12
#: Kinds that may be part of any operator: conversions, copies, sums of numbers.
GENERAL = ("elementwise", "copy", "prepare", "residual", "lora")
#: Number of unmarked passes that are aligned at a time.
FEW = 3
#: Share of the runs of an unknown kernel that must have one and the same kind of place.
MOSTLY = 0.8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assigned:
    """Kernels of a pass with their operators, one entry each.

    operators: their names, "" for one that cannot be told.  beside: a kernel of a general kind stands beside the
    operator's own kernel, which does all of the operator's work.  passes: number of the pass of each kernel, from 0.
    covered: pass -> share of its operators with a kernel, of those that no engine fuses into others.
    """

    operators: tuple[str, ...]
    beside: npt.NDArray[np.bool_]
    passes: npt.NDArray[np.int64]
    covered: Mapping[int, float]


def assigned(kernels: Sequence[Kernel], slots: Sequence[Slot], *, most: float = 1.0) -> Assigned:
    """The operators that the kernels of a recorded span run.

    kernels: in order of their start.  most: number of passes that they can be of, inf where nothing marks a pass; its
    first and last pass may then be recorded in part, and a few passes at a time are aligned.
    """
    found: list[Assigned] = []
    start, kinds = 0, [kind_of(kernel.name) for kernel in kernels]
    slots = with_unfused_attention(slots, kinds)
    while True:
        end = len(kernels) if most == 1.0 else _few_passes(kinds, slots, start)
        part = _assigned(kernels[start:end], slots, most)
        last = int(np.argmax(part.passes == part.passes.max())) if end < len(kernels) else 0
        found.append(_until(part, last or end - start))
        start += last or end - start
        if start == len(kernels):
            return _joined(found)


def _few_passes(kinds: Sequence[str], slots: Sequence[Slot], start: int) -> int:
    """End of the kernels from a start on that are of a few passes, by how often they mix tokens."""
    mixing, count = _mixing(slots)
    runs = _mixed(kinds[start:], mixing)
    return start + runs[FEW * count] if count and len(runs) > FEW * count else len(kinds)


def _until(part: Assigned, end: int) -> Assigned:
    kept = part.passes[:end]
    covered = {number: share for number, share in part.covered.items() if number in kept}
    return Assigned(operators=part.operators[:end], beside=part.beside[:end], passes=kept, covered=covered)


def _joined(parts: Sequence[Assigned]) -> Assigned:
    """The parts one after another, with passes numbered through."""
    first = np.cumsum([0, *(int(part.passes.max(initial=0)) + 1 for part in parts)]).tolist()
    numbered = list(zip(first, parts, strict=False))
    return Assigned(
        operators=tuple(name for part in parts for name in part.operators),
        beside=np.concatenate([part.beside for part in parts]),
        passes=np.concatenate([part.passes + offset for offset, part in numbered]),
        covered={offset + number: share for offset, part in numbered for number, share in part.covered.items()},
    )


def _assigned(kernels: Sequence[Kernel], slots: Sequence[Slot], most: float) -> Assigned:
    turns = turns_of(kernels)
    ordered = [kernels[turn] for turn in turns]
    kinds = [kind_of(kernel.name) for kernel in ordered]
    ends = 1.0 if most == 1.0 else 0.0
    tried = [(align(kinds, chosen, ends=ends), chosen, size) for chosen, size in _candidates(kinds, slots, most)]
    found, chosen, size = max(tried, key=lambda one: one[0].score)
    places = found.places
    _mend(places, kinds, chosen)
    _sort_experts(places, kinds, chosen)
    _join_fills(places, ordered, kinds)
    _fill_gaps(places, ordered, kinds, chosen)
    whole = {place for place, kind in zip(places.tolist(), kinds, strict=True) if _runs(kind, place, chosen)}
    whole |= {int(place) for place, kind in zip(places, kinds, strict=True) if not kind and place != NONE}
    operators, beside = [""] * len(turns), np.zeros(len(turns), dtype=bool)
    passes, current = np.zeros(len(turns), dtype=np.int64), int(max(places.max(initial=NONE), 0)) // size
    for turn, kind, place in reversed(list(zip(turns, kinds, places.tolist(), strict=True))):
        operators[turn] = "" if place == NONE else chosen[place].operator
        beside[turn] = kind in GENERAL and place in whole and not _runs(kind, place, chosen)
        passes[turn] = current = current if place == NONE or most == 1.0 else place // size
    return Assigned(
        operators=tuple(operators),
        beside=beside,
        passes=np.minimum.accumulate(passes[::-1])[::-1],  # no kernel is of a later pass than one after it
        covered=_covered(whole, chosen, size, most),
    )


def _covered(whole: Collection[int], chosen: Sequence[Slot], count: int, most: float) -> dict[int, float]:
    """Share of heavy operators that a kernel runs, by pass.  count: number of operators of a pass."""
    heavy = [
        place
        for place, slot in enumerate(chosen)
        if slot.kind.missing >= HEAVY and (place in whole or not _with_its_twin(place, whole, chosen))
    ]
    of = {place: 0 if most == 1.0 else place // count for place in heavy}
    all_of, run = Counter(of.values()), Counter(of[place] for place in heavy if place in whole)
    return {number: run[number] / all_of[number] for number in all_of}


def _with_its_twin(place: int, whole: Collection[int], chosen: Sequence[Slot]) -> bool:
    """Whether an operator may run in the kernel of its neighbour: gate and up have one input."""
    joined = TWINS.get(chosen[place].operator)
    around = [chosen[near].operator for near in (place - 1, place + 1) if near in whole]
    return joined is not None and joined in map(TWINS.get, around)


def turns_of(kernels: Sequence[Kernel]) -> list[int]:
    """Numbers of kernels in the order of the work: those of a side stream stay together from its first one on.

    A kernel of a side stream follows the one before it there unless a kernel of the busiest stream starts and ends
    in between: what runs beside the main stream would else stand between kernels that it has nothing to do with.
    """
    streams = Counter(kernel.stream for kernel in kernels)
    main = max(streams, key=lambda stream: streams[stream], default=0)
    last: dict[int, tuple[int, int, float]] = {}  # stream -> leader and end of its last kernel, kernels of main so far
    ended: list[tuple[float, float]] = []
    leaders = []
    for number, kernel in enumerate(kernels):
        leader, since, end = last.get(kernel.stream, (number, 0, -inf))
        between = any(start >= end and done <= kernel.start_s for start, done in ended[since:])
        leader = number if kernel.stream == main or between else leader
        leaders.append(leader)
        if kernel.stream == main:
            ended.append((kernel.start_s, kernel.end_s))
        last[kernel.stream] = (leader, len(ended), kernel.end_s)
    return sorted(range(len(kernels)), key=lambda number: (leaders[number], number))


def _runs(kind: str, place: int, slots: Sequence[Slot]) -> bool:
    """Whether a kernel of a kind does the work of the operator at a place."""
    return place != NONE and kind in slots[place].kind.main


def _candidates(kinds: Sequence[str], slots: Sequence[Slot], most: float) -> Iterator[tuple[list[Slot], int]]:
    """Places that the kernels may have: several passes where nothing marks them, other models where a pass has more
    attention than this one; and the number of places of a pass."""
    mixing, count = _mixing(slots)
    runs = len(_mixed(kinds, mixing))
    for chosen in orders(slots):
        if most == 1.0 and runs > count > 0 and mixing != "sampling":
            yield with_others(chosen, kinds), len(chosen)
        else:
            yield chosen * int(min(ceil(runs / count) + 1 if count else 1, most)), len(chosen)


def _mixed(kinds: Sequence[str], mixing: str) -> list[int]:
    """Positions at which tokens are mixed; kernels without a matrix product between them run one operator."""
    heavy = [(at, kind) for at, kind in enumerate(kinds) if kind in (mixing, "matmul", "experts")]
    return [at for (_, before), (at, kind) in zip([(0, ""), *heavy], heavy, strict=False) if kind == mixing != before]


def _mixing(slots: Sequence[Slot]) -> tuple[str, int]:
    """Kind of the kernels that mix tokens, attention if there is any, and the number of operators in a pass that do.

    Attention of three kernels is known by its softmax, of whose kind samplers are too.
    """
    attending = sum(map(attends, slots))
    softmax = sum(slot.kind is SOFTMAX for slot in slots)
    if attending or not softmax:
        return (
            ("attention", attending) if attending else ("recurrence", sum("recurrence" in s.kind.main for s in slots))
        )
    return "sampling", softmax


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
            found[position] = chosen = min((*free[:1], *beside[:1]), key=near.index)
            taken |= {chosen} & set(free)


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


def _fill_gaps(found: Places, kernels: Sequence[Kernel], kinds: Sequence[str], slots: Sequence[Slot]) -> None:
    """Place kernels of an unknown name on the one heavy operator without a kernel between their neighbours.

    Only if there is exactly one in most layers: an unknown name has no other evidence than its place in the cycle.
    """
    taken = {place for place, kind in zip(found.tolist(), kinds, strict=True) if _runs(kind, place, slots)}
    seconds: Counter[str] = Counter()
    for kernel, kind in zip(kernels, kinds, strict=True):
        if not kind:
            seconds[kernel.name] += kernel.seconds  # type: ignore[assignment]
    for name, _ in seconds.most_common():
        own = [at for at, kernel in enumerate(kernels) if kernel.name == name and found[at] == NONE]
        free = {at: _free(found, at, slots, taken) for at in own}
        sure = [at for at in own if len(free[at]) == 1]
        if len(sure) >= MOSTLY * len(own) and len(sure) > 1:
            found[sure] = [free[at][0] for at in sure]
            taken |= {free[at][0] for at in sure}


def _free(found: Places, position: int, slots: Sequence[Slot], taken: Collection[int]) -> list[int]:
    """Heavy operators without a kernel between those of the kernels before and after a position."""
    around = list(_neighbours(found, position))
    heavy = range(min(around, default=0), max(around, default=-1) + 1)
    return [place for place in heavy if slots[place].kind.missing >= HEAVY and place not in taken]
