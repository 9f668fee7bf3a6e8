"""Tables of times over whole numbers and contexts, read by plain Python in a fraction of a microsecond."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import frexp

import numpy as np

from llmviewer.core.counts import Array

#: Times of points: whole numbers, other coordinates -> seconds.
Pricing = Callable[[Array, Array], Array]


def whole_knots(most: int, dense: int, per_octave: int, *, stairs: bool) -> Array:
    """Whole numbers from 1 to `most`: all up to `dense`, then `per_octave` in every octave.

    stairs: each is followed by its successor, so that a time that jumps after multiples of a power of two (tiles of
    rows) is interpolated on each of its stairs.
    """
    steps = np.arange(per_octave) / per_octave
    octaves = 2.0 ** np.arange(np.floor(np.log2(max(dense, 1))), np.ceil(np.log2(max(most, 2))) + 1.0)
    coarse = np.round((octaves[:, None] * (1.0 + steps)).ravel())
    knots = np.concatenate((np.arange(1.0, dense + 1.0), coarse, coarse + 1.0 if stairs else []))
    return np.unique(np.append(knots[knots < most], max(most, 2.0)))


def every_whole(knots: Array, values: Array) -> list[float]:
    """Values at 0, 1, 2 ... up to the last knot by interpolation; the first knot's value at 0."""
    return list(map(float, np.interp(np.arange(knots[-1] + 1.0), knots, values)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surface:
    """A time over a whole number n and a coordinate x >= 0 [s], linear in both between knots.

    Knots of x + 1 are `per_octave` in every octave from 1 on, so that an access needs no search.
    knots: of x.  cells: segment of n -> segment of x -> k of k0 + k1 n + (k2 + k3 n) x.  segments: n -> its segment.
    """

    per_octave: int
    knots: list[float]
    segments: list[int]
    cells: list[list[tuple[float, float, float, float]]]

    def __call__(self, n: int, x: float) -> float:
        """The time at one point [s]."""
        mantissa, octave = frexp(x + 1.0)
        q = self.per_octave
        k0, k1, k2, k3 = self.cells[self.segments[n]][q * octave + int(2 * q * mantissa) - 2 * q]
        return k0 + k1 * n + (k2 + k3 * n) * x


def coordinates(most: float, per_octave: int) -> Array:
    """Knots of a coordinate up to at least `most`, one octave beyond it."""
    octaves = 2.0 ** np.arange(np.ceil(np.log2(most + 2.0)) + 1.0)
    knots = (octaves[:, None] * (1.0 + np.arange(per_octave) / per_octave)).ravel()
    return np.asarray(np.append(knots, 2.0 * octaves[-1]) - 1.0)


def grid(whole: Array, x: Array) -> tuple[Array, Array]:
    """All pairs of knots as two columns."""
    return np.repeat(whole, len(x)), np.tile(x, len(whole))


def surface(whole: Array, x: Array, values: Array, per_octave: int) -> Surface:
    """The surface through values on a grid of knots (in the order of `grid`)."""
    v = values.reshape(len(whole), len(x))
    rise = np.diff(v, axis=1) / np.diff(x)  # per x, at each knot of n
    base = v[:, :-1] - rise * x[:-1]
    width = np.diff(whole)[:, None]
    k1, k3 = np.diff(base, axis=0) / width, np.diff(rise, axis=0) / width
    k0, k2 = base[:-1] - k1 * whole[:-1, None], rise[:-1] - k3 * whole[:-1, None]
    at = np.clip(np.searchsorted(whole, np.arange(whole[-1] + 1.0), side="right") - 1, 0, len(whole) - 2)
    cells = [list(map(tuple, row)) for row in np.stack((k0, k1, k2, k3), axis=2).tolist()]
    return Surface(per_octave=per_octave, knots=x.tolist(), segments=at.tolist(), cells=cells)
