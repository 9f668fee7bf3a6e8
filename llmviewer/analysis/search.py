"""The search for the largest whole number that fits, many candidates at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import numpy as np

from llmviewer.core.counts import Array

#: Yields ascending candidates, is sent what is known of them, and ends with the largest that fits.
Search: TypeAlias = Generator[Array, Any, float]
#: Candidates of a round.
CANDIDATES = 64.0
#: Candidates around the number at which the room is expected to end.
NEIGHBOURS = np.arange(-16.0, 17.0)
NO_STARTS = np.zeros(0)


def largest(fits: Callable[[Array], object], limit: float, low: float = 0.0) -> float:
    """The largest whole number up to `limit` for which `fits` holds, `low` where none above it does.

    fits: array of candidates -> array of truth values, true up to some number and false beyond it.
    """
    searching = search(limit, low, room_of=lambda fit: np.where(np.asarray(fit, dtype=bool), 1.0, -1.0))
    try:
        candidates = next(searching)
        while True:
            candidates = searching.send(fits(candidates))
    except StopIteration as found:
        return float(found.value)


def search(
    limit: float,
    low: float = 0.0,
    *,
    starts: Array = NO_STARTS,
    guess: float = math.nan,
    dip: float = 0.0,
    room_of: Callable[[Any], Array] = np.asarray,
) -> Search:
    """Search for the largest whole number up to `limit` with room, `low` where none above it has.

    room_of: what is sent -> the room at each candidate; negative where it does not fit.  There is room up to some
    number and none beyond it; or from each of `starts` (low + 1 and others) up to some number before the next.  Beyond
    the end, single numbers may have room again within `dip` of one another.
    Half of the candidates are around the number at which the room ends if it falls evenly, at first around `guess`: one
    round finds an answer near the guess, and two find it where the room falls evenly.
    """
    tried, room = np.array([low, limit + 1.0]), np.array([np.inf, -np.inf])  # infinite: unknown
    while True:
        last = int(np.flatnonzero(room >= 0.0)[-1])
        (low, high), (left, lacking) = tried[last : last + 2].tolist(), room[last : last + 2].tolist()
        if high - low <= 1.0:
            return (yield from _beyond_dips(low, dip, room_of)) if dip and low < limit else low
        if math.isfinite(left - lacking):
            guess = low + (high - low) * (left / (left - lacking))
        between = np.sort(np.concatenate((_candidates(low, high, guess), starts)))
        tried = np.concatenate(([low], between, [high]))
        room = np.concatenate(([left], room_of((yield between)), [lacking]))
        if starts.size:
            tried, room = _from_last_start(tried, room, starts)
            starts = NO_STARTS


def _from_last_start(tried: Array, room: Array, starts: Array) -> tuple[Array, Array]:
    """The numbers from the last of the starts that has room to the next, with their room."""
    begun = tried[np.isin(tried, starts) & (room >= 0.0)]
    if not begun.size:
        return tried[:2], room[:2]
    end = starts[starts > begun[-1]].min(initial=tried[-1])
    inside = (tried >= begun[-1]) & (tried < end)
    return np.r_[tried[inside], end], np.r_[room[inside], -np.inf]


def _beyond_dips(low: float, dip: float, room_of: Callable[[Any], Array]) -> Search:
    """The last number with room that is within `dip` of another one, from `low` on."""
    while True:
        near = low + np.arange(1.0, dip + 1.0)
        fitting = near[room_of((yield near)) >= 0.0]
        if not fitting.size:
            return low
        low = float(fitting[-1])


def _candidates(low: float, high: float, guess: float) -> Array:
    """Numbers strictly within a gap: all, or spread evenly, geometrically while the gap spans magnitudes."""
    if high - low <= CANDIDATES:
        return np.arange(low + 1.0, high)
    inner = np.arange(1.0, CANDIDATES + 1.0) / (CANDIDATES + 1.0)
    start = max(low, 0.5)
    spread = start * (high / start) ** inner if high / start > CANDIDATES else low + (high - low) * inner
    if low <= guess < high:
        spread = np.concatenate((spread[::2], guess + NEIGHBOURS))
    return np.floor(np.clip(spread, low + 1.0, high - 1.0))
