"""Operators of recorded kernels: order-preserving alignment with the graph of a pass, mended where engines fuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from llmviewer.api.configuration import Configuration
from llmviewer.calibrate.diagnosis.recording import Kernel
from llmviewer.calibrate.diagnosis.slots import (
    ATTENTION,
    SCORES,
    SOFTMAX,
    TWINS,
    Slot,
    SlotKind,
    kind_of,
    orders,
    with_others,
)
from llmviewer.calibrate.diagnosis.times import Comparison, OperatorTimes
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.kinds import OperatorRole
from llmviewer.core.workload import decode
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.technique import add_pass

#: Cost of a kernel without an operator, by kind; others cost OTHERWISE.
UNPLACED = {
    **dict.fromkeys(("", "copy", "prepare"), 0.2),
    **dict.fromkeys(("elementwise", "residual", "rope_part", "lora"), 0.4),
    **{"embedding": 0.6, "attention": 5.0, "matmul": 3.0},
}
OTHERWISE = 1.5
#: Least cost of a missing kernel for operators that no engine fuses into others.
HEAVY = 2.0
#: Most kernels x operators of one pass.
MAX_CELLS = 2**26
NONE = -1
#: States of an operator: only parts of it so far, or its own kernel too.
PARTS, WHOLE = 0, 1

Scores = npt.NDArray[np.float64]
Places = npt.NDArray[np.int32]


@frozen(kw_only=False)
class Table:
    """Scores of every kind of kernel on every operator, -inf where it cannot run it; shape (kinds, operators).

    first: of a kernel that is the first of its operator, as a part and as its own; shape (kinds, 2, operators).  parts:
    of a further part.  after: of its own kernel after parts.  missing: cost of an operator without a kernel.
    """

    first: Scores
    parts: Scores
    after: Scores
    missing: Scores


@frozen(kw_only=False, eq=False)
class Alignment:
    """Index of the operator of every kernel, NONE without one, and the score of all of them."""

    places: Places
    score: float


def align(kinds: Sequence[str], slots: Sequence[Slot], *, ends: float = 1.0) -> Alignment:
    """The alignment of kernels with operators that has the highest score.

    kinds: of the kernels in their order.  ends: weight of the cost of operators without a kernel before the first and
    after the last one that has, 0 for parts of passes.  Raises UserError for too long a pass.
    """
    if len(kinds) * len(slots) > MAX_CELLS:
        raise UserError(
            f"a recorded pass has {len(kinds):,} kernels; allowed for this model: {MAX_CELLS // len(slots):,}"
        )
    found = _aligned(tuple(kinds), tuple(slot.kind for slot in slots), ends)
    return Alignment(found.places.copy(), found.score)


@lru_cache(maxsize=64)
def _aligned(kinds: tuple[str, ...], slots: tuple[SlotKind, ...], ends: float) -> Alignment:
    """The alignment of one sequence of kernels, which most passes of a recording share."""
    known = sorted(set(kinds))
    table = _table(tuple(known), slots)
    skipped = np.concatenate(([0.0], np.cumsum(table.missing)))  # cost of all operators before each
    rows = [known.index(kind) for kind in kinds]
    costs = [UNPLACED.get(kind, OTHERWISE) for kind in kinds]
    return _traced(table, skipped, rows, costs, ends)


@lru_cache(maxsize=32)
def _table(kinds: tuple[str, ...], slots: tuple[SlotKind, ...]) -> Table:
    main, parts = (np.full((len(kinds), len(slots)), -np.inf) for _ in range(2))
    for column, slot in enumerate(slots):
        for row, kind in enumerate(kinds):
            main[row, column] = slot.main.get(kind, -np.inf)
            parts[row, column] = slot.parts.get(kind, -np.inf)
    missing = np.array([slot.missing for slot in slots])
    alone = np.where(missing >= HEAVY, missing, 0.0)  # the cost of an operator that has only parts
    return Table(first=np.stack([parts - alone, main], axis=1), parts=parts, after=main + alone, missing=missing)


def _traced(table: Table, skipped: Scores, rows: list[int], costs: list[float], ends: float) -> Alignment:
    """Forward pass over kernels, then the way back from the best end."""
    count = len(table.missing)
    outside = 0.0  # score of all kernels so far without an operator
    score = np.full((2, count), -np.inf)
    steps: list[tuple[npt.NDArray[np.bool_], Places]] = []
    for row, cost in zip(rows, costs, strict=True):
        score, choice, origin = _advanced(table, skipped, row, cost, (score, outside - ends * skipped[:-1]))
        outside -= cost
        steps.append((choice, origin))
    final = score - ends * (skipped[-1] - skipped[1:])
    nothing = outside - ends * float(skipped[-1])
    if not rows or float(final.max()) < nothing:
        return Alignment(np.full(len(rows), NONE, dtype=np.int32), nothing)
    state, place = np.unravel_index(int(np.argmax(final)), final.shape)
    return Alignment(_way_back(steps, int(state), int(place)), float(final.max()))


def _advanced(
    table: Table, skipped: Scores, row: int, cost: float, before: tuple[Scores, Scores]
) -> tuple[Scores, npt.NDArray[np.bool_], Places]:
    """Scores after one more kernel; per state and operator, whether it was placed, and the code of the cell before.

    A kernel has no operator, or is the first of its operator, part of it, or its own kernel after parts; the first of
    equal ways wins.  before: scores, and those of entering each operator first.  The code is 2 x operator + state, NONE
    for the start.
    """
    score, first = before
    own = np.arange(2 * score.shape[1], dtype=np.int32).reshape(-1, 2).T
    entering, came = _entering(score, skipped, first, own)
    best, origin = score - cost, own
    placed = np.zeros(best.shape, dtype=np.bool_)
    for value, code in ((entering + table.first[row], came), (score + table.parts[row], own)):
        better = value > best
        placed |= better
        best, origin = np.where(better, value, best), np.where(better, code, origin)
    value = score[PARTS] + table.after[row]
    better = value > best[WHOLE]
    placed[WHOLE] |= better
    for old, new in ((best, value), (origin, own[PARTS])):
        np.copyto(old[WHOLE], new, where=better)
    return best, placed, origin


def _entering(score: Scores, skipped: Scores, first: Scores, own: Places) -> tuple[Scores, Places]:
    """Best score with which a kernel can be the first of each operator, and the code of the cell it comes from."""
    reached = np.maximum(score[WHOLE], score[PARTS]) + skipped[1:]
    running = np.maximum.accumulate(reached)
    code = np.where(score[WHOLE] >= score[PARTS], own[WHOLE], own[PARTS])
    came = np.full_like(code, NONE)
    # codes grow with the operator: the last one that reached the best score so far
    np.maximum.accumulate(np.where(reached == running, code, code[0])[:-1], out=came[1:])
    before = np.full_like(running, -np.inf)
    np.subtract(running[:-1], skipped[1:-1], out=before[1:])
    fresh = first > before
    return np.where(fresh, first, before), np.where(fresh, np.int32(NONE), came)


def _way_back(steps: list[tuple[npt.NDArray[np.bool_], Places]], state: int, place: int) -> Places:
    found = np.full(len(steps), NONE, dtype=np.int32)
    for number in range(len(steps) - 1, -1, -1):
        choice, origin = steps[number]
        if choice[state, place]:
            found[number] = place
        code = int(origin[state, place])
        if code == NONE:
            break
        place, state = divmod(code, 2)
    return found


FLASH = add_pass("flash_attention", flash_attention)
NOTE = "attention ran as one kernel, and is predicted so: without recorded kernels the engine's preset has three"

#: Kinds of kernels of attention on an unfused backend; samplers have softmax too.
PRODUCT, NORMALIZED = "matmul", "sampling"
#: Kinds of kernels that may stand between those of unfused attention: scaling, masks, conversions.
BETWEEN = ("", "elementwise", "copy", "prepare", "residual", "matmul_part")


def as_recorded(chosen: Configuration, kernels: Sequence[Kernel]) -> tuple[Configuration, tuple[str, ...]]:
    """The configuration with attention as one kernel if the recording has it so, and a note.

    The preset of llama.cpp has the three kernels of 2024; builds since run one (`-fa`, flash_attn_ext_...).
    """
    graph = chosen.system.prepared(chosen.model.graph(decode(1.0, 1.0)))
    eager = any(operator.role is OperatorRole.SCORES for _, operator in graph)
    if eager and any(kind_of(kernel.name) == "attention" for kernel in kernels):
        return replace(chosen, system=FLASH(chosen.system)), (NOTE,)
    return chosen, ()


def with_unfused_attention(slots: Sequence[Slot], kinds: Sequence[str]) -> list[Slot]:
    """The places of a pass, with three for attention if its scores, softmax and weighted values are recorded apart.

    Known by a softmax alone between two products for each attention, where no kernel of attention runs; a router's
    is followed by its choice of experts.
    """
    attending = sum(attends(slot) for slot in slots)
    heavy = [kind for kind in kinds if kind not in BETWEEN]
    apart = sum(triple == (PRODUCT, NORMALIZED, PRODUCT) for triple in zip(heavy, heavy[1:], heavy[2:], strict=False))
    if not attending or "attention" in kinds or apart < attending:
        return list(slots)
    three = (SCORES, SOFTMAX, SCORES)
    return [
        place for slot in slots for place in ([replace(slot, kind=kind) for kind in three] if attends(slot) else [slot])
    ]


def attends(slot: Slot) -> bool:
    """Whether attention of one kernel runs at a place."""
    return "attention" in slot.kind.main and slot.kind.missing >= ATTENTION.missing


def of_unfused_attention(names: Collection[str]) -> bool:
    """Whether kernels of attention with these names are those of an unfused backend."""
    kinds = {kind_of(name) for name in names}
    return {PRODUCT, NORMALIZED} <= kinds and "attention" not in kinds


def join_gate_and_up(found: Comparison) -> None:
    """Make one operator of gate and up where one kernel ran both, as llama.cpp does; it has the time of both.

    https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-cuda/ggml-cuda.cu.
    """
    for joined in dict.fromkeys(TWINS.values()):
        twins = [found.operators[name] for name, both in TWINS.items() if both == joined and name in found.operators]
        ran = [one for one in twins if one.kernels]
        if len(twins) == len(ran) + 1 == 2:
            _join(found, ran[0], twins, joined)


def _join(found: Comparison, ran: OperatorTimes, twins: Sequence[OperatorTimes], joined: str) -> None:
    """Make one operator of two.  ran: the one whose kernel ran both.  joined: the name of both together."""
    low, planned, high = (sum(getattr(one, name) for one in twins) for name in ("low_s", "predicted_s", "high_s"))
    both = replace(ran, name=joined, low_s=low, predicted_s=planned, high_s=high)
    kept = [both if one is ran else one for one in found.operators.values() if one is ran or one not in twins]
    found.operators = {one.name: one for one in kept}
    found.unplanned = {
        where.replace(f" beside {ran.name}", f" beside {joined}"): seconds for where, seconds in found.unplanned.items()
    }
    runs = found.runs.items()
    found.runs = {(name, kind, joined if of == ran.name else of): run for (name, kind, of), run in runs}


#: Operators to either side among which a kernel that is out of order is placed.
REACH = 12
#: Kinds that may be part of any operator: conversions, copies, sums of numbers.
GENERAL = ("elementwise", "copy", "prepare", "residual", "lora")
#: Number of unmarked passes that are aligned at a time.
FEW = 3
#: Share of the runs of an unknown kernel that must have one and the same kind of place.
MOSTLY = 0.8


@frozen(eq=False)
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
