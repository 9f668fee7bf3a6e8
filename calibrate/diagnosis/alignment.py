"""Order-preserving assignment of kernels to operators, the one with the highest score.

Every operator takes consecutive kernels: one that does its work and parts of it beside.  Operators may have no kernel
(their work is fused into another) and kernels no operator.  The best assignment is found by dynamic programming over
kernels, with all operators at once in numpy (Needleman and Wunsch, https://doi.org/10.1016/0022-2836(70)90057-4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from llmviewer.calibrate.diagnosis.slots import Slot, SlotKind
from llmviewer.core.errors import UserError

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


@dataclass(frozen=True, slots=True)
class Table:
    """Scores of every kind of kernel on every operator, -inf where it cannot run it; shape (kinds, operators).

    first: of a kernel that is the first of its operator, as a part and as its own; shape (kinds, 2, operators).  parts:
    of a further part.  after: of its own kernel after parts.  missing: cost of an operator without a kernel.
    """

    first: Scores
    parts: Scores
    after: Scores
    missing: Scores


@dataclass(frozen=True, slots=True, eq=False)
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
