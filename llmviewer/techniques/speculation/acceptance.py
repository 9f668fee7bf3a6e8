"""Acceptance of draft tokens by the target, by position or by rank, and expected tokens per verification pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen

#: Bisection steps of [0, 1], enough for double precision.
BISECTIONS = 60
#: Tolerance for rates that sum to more than 1 because they are printed rounded.
ROUNDING = 1e-3


@frozen
class Acceptance:
    """Probability that a draft token is accepted if all before it were, by position.

    rates: one per position, from the first draft token; later positions use the last rate, so a single rate means that
    every token is accepted with the same probability, independently of the others.
    name: the preset the rates come from; "" if a user gave them.
    """

    rates: tuple[float, ...]
    name: str = ""

    def __str__(self) -> str:
        return self.name or "/".join(f"{rate:g}" for rate in self.rates)

    def at(self, position: int) -> float:
        """Rate of the draft token at `position`, counted from 1; the last rate beyond the end."""
        return self.rates[min(position, len(self.rates)) - 1]

    def tokens(self, drafted: Count) -> Count:
        """Expected tokens of a pass that verifies `drafted` tokens [whole numbers], including the bonus token.

        E = 1 + sum_i prod_{j<=i} a_j, which is (1 - a^(drafted+1)) / (1 - a) if all a_j are a, and drafted + 1 if a = 1
        (Leviathan et al., arXiv 2211.17192, eq. 1).  Summed term by term because the fraction loses precision near 1.
        """
        counts = np.asarray(drafted, dtype=np.int64)
        products = np.cumprod([1.0, *(self.at(position) for position in range(1, int(counts.max(initial=0)) + 1))])
        expected = np.cumsum(products)[counts]
        return expected if isinstance(drafted, np.ndarray) else float(expected)

    def distilled(self, share: float) -> Acceptance:
        """Acceptance of a distilled draft model that avoids this share of the rejections, a -> 1 - (1-a)(1-share).

        DistillSpec (arXiv 2310.08461) measures such gains; they depend on data and draft model.
        """
        rates = tuple(1.0 - (1.0 - rate) * (1.0 - share) for rate in self.rates)
        return replace(self, rates=rates, name="") if share else self


def from_lengths(lengths: Mapping[int, float], name: str = "") -> Acceptance:
    """Acceptance rates from published lengths: draft tokens -> mean tokens per pass, including the bonus token.

    a_i = (AL_i - AL_(i-1)) / (AL_(i-1) - AL_(i-2)) with AL_0 = 1 and AL_(-1) = 0; if positions are missing between two
    lengths, they get the constant rate that leads from one to the other.  Raises UserError for lengths that no rates
    from 0 to 1 explain.
    """
    rates: list[float] = []
    before, length, reached = 0, 1.0, 1.0
    for drafted, measured in sorted(lengths.items()):
        span, gain = drafted - before, measured - length
        if not 0.0 <= gain <= span * reached + 1e-9:
            raise UserError(
                f"acceptance: no rates from 0 to 1 give a mean length of {measured:g} with {drafted} draft tokens "
                f"and of {length:g} with {before}"
            )
        rate = _constant_rate(gain / reached, span) if reached else 0.0
        rates += [rate] * span
        before, length, reached = drafted, measured, reached * rate**span
    return Acceptance(rates=tuple(rates) or (0.0,), name=name)


def _constant_rate(gain: float, span: int) -> float:
    """The rate a with a + a^2 + ... + a^span = gain."""
    if span == 1:
        return min(gain, 1.0)
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if sum(middle**i for i in range(1, span + 1)) > gain else (middle, high)
    return high


@frozen
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
