"""Shapley values: a difference split over the factors that make it.

The amount of a factor is the mean, over all orders in which factors may change from A to B, of what its change adds.
L. S. Shapley, A value for n-person games, Contributions to the Theory of Games II, 1953, pages 307 to 317.  The amounts
sum to the difference; a factor that never changes the value has 0; two factors with equal effects have equal amounts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from math import factorial
from typing import TypeAlias

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen

#: Indices of the factors that have the value of B; the others have that of A.
Coalition: TypeAlias = "frozenset[int]"
#: Most factors whose coalitions are all evaluated.
MOST_EXACT = 10
#: Pairs of an order and its reverse that are sampled for more factors.
SAMPLED_PAIRS = 48
SEED = 0


@frozen(eq=False)
class Split:
    """Amounts by factor, which sum to the difference.  errors: standard errors of sampled amounts, 0 for exact ones."""

    amounts: Array
    errors: Array


def coalitions(factors: int) -> list[Coalition]:
    """All coalitions that the split of a number of factors needs, each once."""
    if factors <= MOST_EXACT:
        return list(_subsets(range(factors)))
    prefixes = (frozenset(order[:length]) for order in _orders(factors) for length in range(factors + 1))
    return list(dict.fromkeys(prefixes))


def split(values: Mapping[Coalition, float], factors: int) -> Split:
    """The split of the value of all factors minus that of none.  values: of all `coalitions`."""
    return (_exact if factors <= MOST_EXACT else _sampled)(values.__getitem__, factors)


def _subsets(members: range) -> Iterator[Coalition]:
    for size in range(len(members) + 1):
        yield from map(frozenset, combinations(members, size))


def _exact(value: Callable[[Coalition], float], factors: int) -> Split:
    """The weighted mean of what a factor adds to each coalition of others."""
    amounts = np.zeros(factors)
    for coalition in _subsets(range(factors)):
        before = len(coalition)
        for one in set(range(factors)) - coalition:
            weight = factorial(before) * factorial(factors - before - 1) / factorial(factors)
            amounts[one] += weight * (value(coalition | {one}) - value(coalition))
    return Split(amounts=amounts, errors=np.zeros(factors))


def _orders(factors: int) -> list[tuple[int, ...]]:
    """Random orders of the factors, each followed by its reverse: what one adds too much the other adds too little."""
    generator = np.random.default_rng(SEED)
    drawn = [tuple(map(int, generator.permutation(factors))) for _ in range(SAMPLED_PAIRS)]
    return [order for one in drawn for order in (one, one[::-1])]


def _sampled(value: Callable[[Coalition], float], factors: int) -> Split:
    """The mean of what a factor adds over sampled orders, with the standard error of that mean over the pairs."""
    added = np.zeros((2 * SAMPLED_PAIRS, factors))
    for row, order in enumerate(_orders(factors)):
        for at, one in enumerate(order):
            added[row, one] = value(frozenset(order[: at + 1])) - value(frozenset(order[:at]))
    pairs = added.reshape(SAMPLED_PAIRS, 2, factors).mean(axis=1)
    errors = pairs.std(axis=0, ddof=1) / np.sqrt(SAMPLED_PAIRS)
    return Split(amounts=pairs.mean(axis=0), errors=errors)
