"""How often the target's token is the draft's first choice, its second, ...: what a tree of drafts is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmviewer.core.errors import UserError
from llmviewer.techniques.speculation.acceptance import Acceptance

#: Rates that sum to one may miss it by the digits they are printed with.
ROUNDING = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The probability that the target's token is the draft's choice of each rank where the path to it is right.

    rates: a row per depth, the last goes for all deeper ones; a row falls from rank to rank and sums to 1 at most.
    Ranks beyond the end of a row are never right.  name: of the preset, "" where a user gave the rates.
    """

    rates: tuple[tuple[float, ...], ...]
    name: str = ""

    def __str__(self) -> str:
        return self.name or "/".join(f"{rate:g}" for rate in self.rates[0])

    def at(self, depth: int, rank: int) -> float:
        """The rate of a choice; both are counted from 1."""
        row = self.rates[min(depth, len(self.rates)) - 1]
        return row[rank - 1] if rank <= len(row) else 0.0


def from_success_rates(by_depth: Sequence[Sequence[float]], name: str = "") -> Ranks:
    """From success rates of the top 1, top 2, ... choices together, as papers print them: a row per depth."""
    rows = []
    for success in by_depth:
        row = (success[0], *(high - low for low, high in pairwise(success)))
        check_ranks(f"success rates {'/'.join(f'{rate:g}' for rate in success)}", row)
        rows.append(row)
    return Ranks(rates=tuple(rows), name=name)


def from_independent_draws(acceptance: Acceptance, most: int) -> Ranks:
    """Of up to `most` independent draws at each depth, the k-th right where those before it were not: a (1-a)^(k-1).

    One of m is right with 1 - (1 - a)^m.  An upper bound: draws repeat each other, and what the first missed the others
    are likelier to miss as well (SpecInfer, arXiv 2305.09781; SpecTr, arXiv 2310.15141).
    """
    rows = (tuple(rate * (1.0 - rate) ** missed for missed in range(most)) for rate in acceptance.rates)
    return Ranks(rates=tuple(rows), name=str(acceptance))


def check_ranks(what: str, row: Sequence[float]) -> None:
    """Raise where rates by rank do not fall from 1 to 0 or sum to more than 1."""
    falls = all(high >= low - 1e-9 for high, low in pairwise(row))
    if not (falls and min(row) >= 0.0 and sum(row) <= 1.0 + ROUNDING):
        raise UserError(f"{what} must fall from rank to rank, from 1 to 0, and sum to 1 at most")
