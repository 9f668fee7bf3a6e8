"""Times over whole numbers and contexts, linear between knots, which plain Python reads in less than a microsecond."""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp

import numpy as np

from llmviewer.core.counts import Array

#: Contexts below which attention is a small part of a pass, and from which on it has no more kinks [token].
SHORT, LONG = 63.0, 8191.0
#: Coefficients of k0 + k1 n + (k2 + k3 n) x.
Cell = tuple[float, float, float, float]


def whole_knots(most: int, dense: int, per_octave: int, *, stairs: bool) -> Array:
    """Whole numbers from 1 to `most`, at least two: all up to `dense`, then `per_octave` in every octave.

    stairs: each is followed by its successor, so that a time that jumps after multiples of a power of two (tiles of
    rows) is interpolated on each of its stairs.
    """
    steps, most = np.arange(per_octave) / per_octave, max(most, 2)
    octaves = 2.0 ** np.arange(np.floor(np.log2(dense)), np.ceil(np.log2(most)) + 1.0)
    coarse = np.round((octaves[:, None] * (1.0 + steps)).ravel())
    knots = np.concatenate((np.arange(1.0, dense + 1.0), coarse, coarse + 1.0 if stairs else []))
    return np.unique(np.append(knots[knots < most], float(most)))


def every_whole(knots: Array, values: Array) -> list[float]:
    """Values at 0, 1, 2 ... up to the last knot by interpolation; 0 at 0."""
    return [0.0, *np.interp(np.arange(1.0, knots[-1] + 1.0), knots, values).tolist()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Knots:
    """Knots of a coordinate x >= 0: `per_octave` in every octave of x + 1, so that an access needs no search.

    Windows and blocks of keys are multiples of powers of two, so a kink lies on a knot, and so does a jump: segment i
    is the line through its values at first[i] and last[i], the last whole number before the next knot if `jumps`.
    """

    per_octave: int
    first: Array
    last: Array

    @property
    def points(self) -> Array:
        """Points at which a time is evaluated, ascending: up to SHORT only one in every octave, from LONG on four."""
        ends = np.union1d(self.first, self.last)
        places = np.log2(ends + 1.0) % 1.0
        quarters = np.round(2.0**places * 4.0, 6) % 1.0 == 0.0
        return np.asarray(ends[np.where(ends < SHORT, places == 0.0, (ends < LONG) | quarters)])

    def segment(self, x: float) -> int:
        """Index of the segment of x."""
        mantissa, octave = frexp(x + 1.0)
        return self.per_octave * (octave - 2) + int(2 * self.per_octave * mantissa)


def knots(most: float, per_octave: int, jumps: tuple[float, float] = (0.0, 0.0)) -> Knots:
    """Knots up to `most` or beyond.  jumps: limits of the x where a time jumps at knots."""
    octaves = 2.0 ** np.arange(np.ceil(np.log2(most + 2.0)))
    first = (octaves[:, None] * (1.0 + np.arange(per_octave) / per_octave)).ravel() - 1.0
    end = np.append(first[1:], 2.0 * octaves[-1] - 2.0)  # within the last segment
    return Knots(
        per_octave=per_octave, first=first, last=np.where((end >= jumps[0]) & (end < jumps[1]), end - 1.0, end)
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surface:
    """A time over a whole number n and a coordinate x [s], linear in both between knots.

    cells: segment of n -> segment of x -> Cell.  segments: n -> its segment.
    """

    segments: list[int]
    cells: list[list[Cell]]


def grid(whole: Array, x: Knots) -> tuple[Array, Array]:
    """All pairs of knots as two columns."""
    points = x.points
    return np.repeat(whole, len(points)), np.tile(points, len(whole))


def between(known: Array, values: Array, wanted: Array) -> Array:
    """Rows of `values`, known at ascending points, at others by interpolation; beyond the last one by extrapolation."""
    at = np.clip(np.searchsorted(known, wanted, side="right") - 1, 0, len(known) - 2)
    share = ((wanted - known[at]) / (known[at + 1] - known[at]))[:, None]
    return np.asarray(values[at] * (1.0 - share) + values[at + 1] * share)


def surface(whole: Array, x: Knots, values: Array) -> Surface:
    """The surface through values on a grid of knots (in the order of `grid`)."""
    v = values.reshape(len(whole), -1).T
    first, last = between(x.points, v, x.first).T, between(x.points, v, x.last).T
    rise = (last - first) / (x.last - x.first)
    base = first - rise * x.first
    width = np.diff(whole)[:, None]
    k1, k3 = np.diff(base, axis=0) / width, np.diff(rise, axis=0) / width
    k0, k2 = base[:-1] - k1 * whole[:-1, None], rise[:-1] - k3 * whole[:-1, None]
    at = np.clip(np.searchsorted(whole, np.arange(whole[-1] + 1.0), side="right") - 1, 0, len(whole) - 2)
    cells = [list(map(tuple, row)) for row in np.stack((k0, k1, k2, k3), axis=2).tolist()]
    return Surface(segments=at.tolist(), cells=cells)
