"""The highest request rate at which a server still does what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

#: Width at which the search ends, as a fraction of the rate.
TOLERANCE = 0.01
#: Doublings of a first guess that was too low.
MOST_DOUBLINGS = 40

Meets = Callable[[Sequence[float]], Sequence[bool]]


def highest_rate(meets: Meets, guess: float, at_once: int = 1) -> float:
    """The highest rate [requests/s] for which `meets` is true, within TOLERANCE; 0 where none of the rates tried is.

    meets: rates -> whether each is sustained, true below some rate and false above.  guess: a rate near it.  at_once:
    rates that are tried together, one per core: each round divides the interval by one more.
    """
    low, high = 0.0, guess
    for _ in range(MOST_DOUBLINGS):
        if not meets((high,))[0]:
            break
        low, high = high, 2.0 * high
    while high - low > TOLERANCE * high and high > TOLERANCE * guess:
        rates = np.linspace(low, high, at_once + 2)[1:-1].tolist()
        failed = next((index for index, kept in enumerate(meets(rates)) if not kept), at_once)
        bounds = [low, *rates, high]
        low, high = bounds[failed], bounds[failed + 1]
    return low
