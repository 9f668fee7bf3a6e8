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

    missing: cost of an operator without a kernel.  alone: of one that has only parts of it.
    """

    main: Scores
    parts: Scores
    missing: Scores
    alone: Scores


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
    known = sorted(set(kinds))
    table = _table(tuple(known), tuple(slot.kind for slot in slots))
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
    return Table(main=main, parts=parts, missing=missing, alone=np.where(missing >= HEAVY, missing, 0.0))


def _traced(table: Table, skipped: Scores, rows: list[int], costs: list[float], ends: float) -> Alignment:
    """Forward pass over kernels, then the way back from the best end."""
    count = len(table.missing)
    outside = 0.0  # score of all kernels so far without an operator
    score = np.full((2, count), -np.inf)
    steps: list[tuple[npt.NDArray[np.int8], Places]] = []
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


#: The first of the ways to go on: without an operator.  The others place the kernel, as the first of its operator, as
#: part of it, or as its own kernel after parts; the first way wins a tie.
EXTRA = 0


def _advanced(
    table: Table, skipped: Scores, row: int, cost: float, before: tuple[Scores, Scores]
) -> tuple[Scores, npt.NDArray[np.int8], Places]:
    """Scores after one more kernel; per state and operator, whether it was placed, and the code of the cell before.

    before: scores, and those of entering each operator first.  The code is 2 x operator + state, NONE for the start.
    """
    score, first = before
    main, parts, alone = table.main[row], table.parts[row], table.alone
    entering, came = _entering(score, skipped, first)
    own = np.arange(score.shape[1], dtype=np.int32) * 2
    options = np.array(
        [
            [score[PARTS] - cost, entering + parts - alone, score[PARTS] + parts, np.full_like(entering, -np.inf)],
            [score[WHOLE] - cost, entering + main, score[WHOLE] + parts, score[PARTS] + main + alone],
        ]
    )
    best = options.argmax(axis=1)
    codes = np.array([[own, came, own, own], [own + 1, came, own + 1, own]], dtype=np.int32)
    chosen = np.take_along_axis(options, best[:, None], axis=1)[:, 0]
    origin = np.take_along_axis(codes, best[:, None], axis=1)[:, 0]
    return chosen, (best != EXTRA).astype(np.int8), origin


def _entering(score: Scores, skipped: Scores, first: Scores) -> tuple[Scores, Places]:
    """Best score with which a kernel can be the first of each operator, and the code of the cell it comes from."""
    state = (score[WHOLE] >= score[PARTS]).astype(np.int32)
    reached = np.maximum(score[WHOLE], score[PARTS]) + skipped[1:]
    running = np.maximum.accumulate(reached)
    index = np.maximum.accumulate(np.where(reached == running, np.arange(len(reached)), 0)).astype(np.int32)
    before = np.concatenate(([-np.inf], running[:-1])) - skipped[:-1]
    came = np.concatenate(([NONE], (2 * index + state[index])[:-1])).astype(np.int32)
    fresh = first > before
    return np.where(fresh, first, before), np.where(fresh, np.int32(NONE), came)


def _way_back(steps: list[tuple[npt.NDArray[np.int8], Places]], state: int, place: int) -> Places:
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
