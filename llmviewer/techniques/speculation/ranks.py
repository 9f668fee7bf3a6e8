"""Acceptance of draft tokens by rank: how often the target's token is the drafter's first, second, ... choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmviewer.core.errors import UserError
from llmviewer.techniques.speculation.acceptance import Acceptance

#: Tolerance for rates that sum to more than 1 because they are printed rounded.
ROUNDING = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Probability that the target's token is the drafter's choice of each rank, if the path to it is accepted.

    rates: one row per depth; the last row holds for all greater depths.  A row falls from rank to rank and sums to at
    most 1; ranks beyond its end have rate 0.  name: the preset; "" if a user gave the rates.
    """

    rates: tuple[tuple[float, ...], ...]
    name: str = ""

    def __str__(self) -> str:
        return self.name or "/".join(f"{rate:g}" for rate in self.rates[0])

    def at(self, depth: int, rank: int) -> float:
        """Rate of a choice; depth and rank are counted from 1."""
        row = self.rates[min(depth, len(self.rates)) - 1]
        return row[rank - 1] if rank <= len(row) else 0.0


def from_success_rates(by_depth: Sequence[Sequence[float]], name: str = "") -> Ranks:
    """Ranks from cumulative success rates of the top 1, top 2, ... choices, as papers print them; one row per depth."""
    rows = []
    for success in by_depth:
        row = (success[0], *(high - low for low, high in pairwise(success)))
        check_ranks(f"success rates {'/'.join(f'{rate:g}' for rate in success)}", row)
        rows.append(row)
    return Ranks(rates=tuple(rows), name=name)


def from_independent_draws(acceptance: Acceptance, draws: int) -> Ranks:
    """Ranks of up to `draws` independent draws per depth: the k-th is the first accepted one with a (1-a)^(k-1).

    One of m draws is accepted with 1 - (1 - a)^m.  This is an upper bound: draws repeat, and a token that one draw
    misses is likelier to be missed by the others (SpecInfer, arXiv 2305.09781; SpecTr, arXiv 2310.15141).
    """
    rows = (tuple(rate * (1.0 - rate) ** missed for missed in range(draws)) for rate in acceptance.rates)
    return Ranks(rates=tuple(rows), name=str(acceptance))


def check_ranks(what: str, row: Sequence[float]) -> None:
    """Raise UserError for rates by rank that do not fall from 1 to 0, or that sum to more than 1."""
    falls = all(high >= low - 1e-9 for high, low in pairwise(row))
    if not (falls and min(row) >= 0.0 and sum(row) <= 1.0 + ROUNDING):
        raise UserError(f"{what} must fall from rank to rank, between 1 and 0, and sum to at most 1")
