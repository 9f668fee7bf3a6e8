"""How many drafted tokens the target accepts: `0.8`, `0.8/0.7/0.6` by position, or the name of a published preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError

#: Halvings of [0, 1] that leave nothing between two neighbouring numbers of a rate worth having.
BISECTIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The probability that a drafted token is accepted where all before it were, by position.

    rates: of the first drafted token, the second ...; positions beyond the end continue with the last rate, so that
    one rate alone says that every token is accepted with the same probability, independently of the others.
    name: of the preset it comes from, "" where a user gave the rates.
    """

    rates: tuple[float, ...]
    name: str = ""

    def __str__(self) -> str:
        return self.name or "/".join(f"{rate:g}" for rate in self.rates)

    def at(self, position: int) -> float:
        """Rate of the drafted token at `position`, counted from 1; the last one's beyond the end of the curve."""
        return self.rates[min(position, len(self.rates)) - 1]

    def tokens(self, drafted: Count) -> Count:
        """Expected tokens of a pass that verifies `drafted` tokens [whole numbers], the target's own (bonus) included.

        E = 1 + sum_i prod_{j<=i} a_j, which is (1 - a^(drafted+1)) / (1 - a) where all a_j are a, and drafted + 1 where
        a = 1 (Leviathan et al., arXiv 2211.17192, eq. 1).  Added up term by term: the fraction loses its digits near 1.
        """
        asked = np.asarray(drafted, dtype=np.int64)
        reached = np.cumprod([1.0, *(self.at(position) for position in range(1, int(asked.max(initial=0)) + 1))])
        expected = np.cumsum(reached)[asked]
        return expected if isinstance(drafted, np.ndarray) else float(expected)

    def raised(self, by: float) -> Acceptance:
        """That of a distilled draft: distillation makes this share of the rejections disappear, a -> 1 - (1-a)(1-by).

        DistillSpec (arXiv 2310.08461) measures such gains; how large one is depends on data and draft.
        """
        rates = tuple(1.0 - (1.0 - rate) * (1.0 - by) for rate in self.rates)
        return replace(self, rates=rates, name="") if by else self


def from_lengths(lengths: Mapping[int, float], name: str = "") -> Acceptance:
    """The acceptance behind published lengths: drafted tokens -> mean tokens of a pass, the bonus token included.

    a_i = (AL_i - AL_(i-1)) / (AL_(i-1) - AL_(i-2)) with AL_0 = 1 and AL_(-1) = 0; between two lengths further apart,
    and up to a single one, the constant rate that leads from one to the other.  Raises UserError for lengths that no
    rates from 0 to 1 explain.
    """
    rates: list[float] = []
    before, length, reached = 0, 1.0, 1.0
    for drafted, measured in sorted(lengths.items()):
        span, gain = drafted - before, measured - length
        if not 0.0 <= gain <= span * reached + 1e-9:
            raise UserError(
                f"acceptance: no rates from 0 to 1 give a mean length of {measured:g} with {drafted} tokens drafted "
                f"and of {length:g} with {before}"
            )
        rate = _constant_rate(gain / reached, span) if reached else 0.0
        rates += [rate] * span
        before, length, reached = drafted, measured, reached * rate**span
    return Acceptance(rates=tuple(rates) or (0.0,), name=name)


def _constant_rate(gain: float, span: int) -> float:
    """The a for which a + a^2 + ... + a^span = gain."""
    if span == 1:
        return min(gain, 1.0)
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if sum(middle**i for i in range(1, span + 1)) > gain else (middle, high)
    return high
