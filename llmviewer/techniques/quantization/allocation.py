"""Choice of one format per matrix with the least total error within a budget of storage (multiple-choice knapsack)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen

#: Relative rounding errors of sums of sizes and errors.
ROUNDING = 1e-9
#: Partial choices that are compared at once; matrices of few sizes make some thousands.
MAX_CHOICES = 2_000_000


@frozen
class _Upgrade:
    """A step of one row to a larger option on the convex hull of its sizes and errors."""

    row: int
    option: int
    size: float
    gain: float

    @property
    def rate(self) -> float:
        """Error that it removes per unit of size."""
        return self.gain / self.size


def least_error(sizes: Array, errors: Array, capacity: float) -> list[int]:
    """The option of every row with the least sum of errors among those whose sizes sum to at most `capacity`.

    sizes, errors: one row per matrix, one column per option.  Exact: options that exceed the bound of the linear
    relaxation (Dantzig's, at the price of size where the budget ends) by more than a feasible choice does are left
    out, and the choices of the others are compared row by row.  Rows alike have their larger options first.  Raises
    UserError if the least sizes exceed the capacity.
    Source: Kellerer, Pferschy, Pisinger, Knapsack Problems (2004), chapter 11.
    """
    room = capacity + ROUNDING * capacity
    chosen, price = _greedy(sizes, errors, room)
    if price > 0.0:
        rows = np.arange(len(sizes))
        priced = errors + price * sizes
        bound = float(priced.min(axis=1).sum()) - price * room
        gap = max(float(errors[rows, chosen].sum()) - bound, 0.0) + ROUNDING * float(errors[rows, chosen].sum())
        excess = priced - priced.min(axis=1, keepdims=True)
        chosen = _compared(sizes, errors, excess, gap, room)
    return _larger_first(sizes, errors, chosen)


def _hull(sizes: Array, errors: Array) -> list[int]:
    """Options of one row on the lower convex hull, from the smallest size to the least error."""
    found: list[int] = []
    for option in np.lexsort((errors, sizes)).tolist():
        if found and errors[option] >= errors[found[-1]]:
            continue
        while len(found) > 1 and _rate(sizes, errors, found[-2], found[-1]) <= _rate(sizes, errors, found[-1], option):
            found.pop()
        found.append(option)
    return found


def _rate(sizes: Array, errors: Array, one: int, other: int) -> float:
    return float((errors[one] - errors[other]) / (sizes[other] - sizes[one]))


def _upgrades(row: int, sizes: Array, errors: Array) -> Iterator[_Upgrade]:
    hull = _hull(sizes, errors)
    for one, other in pairwise(hull):
        size, gain = float(sizes[other] - sizes[one]), float(errors[one] - errors[other])
        yield _Upgrade(row=row, option=other, size=size, gain=gain)


def _greedy(sizes: Array, errors: Array, room: float) -> tuple[list[int], float]:
    """A choice that fits, and the rate of the first upgrade that does not; 0 if all fit."""
    chosen = [_hull(*row)[0] for row in zip(sizes, errors, strict=True)]
    left = room - float(sizes[np.arange(len(sizes)), chosen].sum())
    if left < 0.0:
        raise UserError("the smallest options exceed the budget")
    upgrades = [one for row in range(len(sizes)) for one in _upgrades(row, sizes[row], errors[row])]
    price, closed = 0.0, set[int]()
    for upgrade in sorted(upgrades, key=lambda one: -one.rate):
        if upgrade.row not in closed and upgrade.size <= left:
            chosen[upgrade.row] = upgrade.option
            left -= upgrade.size
        else:
            closed.add(upgrade.row)
            price = price or upgrade.rate
    return chosen, price


def _compared(sizes: Array, errors: Array, excess: Array, gap: float, room: float) -> list[int]:
    """The best choice of all rows among options whose excess over the bound is at most `gap`, together too.

    Of the choices for the first rows, those are kept that no smaller one with as little error replaces.
    """
    allowed = [np.flatnonzero(row <= gap) for row in excess]
    later = np.cumsum([float(sizes[at, options].min()) for at, options in enumerate(allowed)][::-1])[::-1]
    size, error, over = np.zeros(1), np.zeros(1), np.zeros(1)
    history: list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]] = []
    for row, options in enumerate(allowed):
        after = float(later[row + 1]) if row + 1 < len(later) else 0.0
        sums = [
            np.add.outer(table[row, options], one).ravel()
            for table, one in ((sizes, size), (errors, error), (excess, over))
        ]
        fits = np.flatnonzero((sums[0] + after <= room) & (sums[2] <= gap))
        order = fits[np.lexsort((sums[1][fits], sums[0][fits]))]
        least = np.minimum.accumulate(sums[1][order])
        kept = order[np.append(True, sums[1][order][1:] < least[:-1])]
        if len(kept) > MAX_CHOICES:
            raise UserError("the matrices have too many different sizes to compare their formats exactly")
        history.append((options[kept // len(size)], kept % len(size)))
        size, error, over = (one[kept] for one in sums)
    at, chosen = len(size) - 1, list[int]()  # the largest choice has the least error
    for options, before in reversed(history):
        chosen.append(int(options[at]))
        at = int(before[at])
    return chosen[::-1]


def _larger_first(sizes: Array, errors: Array, chosen: list[int]) -> list[int]:
    """The choice with the larger options of equal rows on the first of them."""
    alike: dict[bytes, list[int]] = {}
    for row in range(len(sizes)):
        alike.setdefault(sizes[row].tobytes() + errors[row].tobytes(), []).append(row)
    found = list(chosen)
    for rows in alike.values():
        ordered = sorted((chosen[row] for row in rows), key=lambda option: -sizes[rows[0], option])
        for row, option in zip(rows, ordered, strict=True):
            found[row] = option
    return found
