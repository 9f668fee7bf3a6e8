"""Times at which requests arrive: Poisson and other renewal processes, at one rate or along a curve over the day."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.parsing import duration
from llmviewer.language.grammar import Grammar, Number
from llmviewer.techniques.technique import called

#: Gaps of mean 1 from a generator: their number, random numbers -> gaps.
Gaps = Callable[[int, np.random.Generator], Array]
DAY_S = 86400.0


def gamma(*, cv: Annotated[float, Number("coefficient of variation of the gaps", 0.01, 100.0)]) -> Gaps:
    """Gaps of a gamma distribution."""
    shape = cv**-2.0
    return lambda count, random: random.gamma(shape, 1.0 / shape, count)


def gaps_of(text: str) -> Gaps:
    """The process of `--arrivals`: poisson, fixed, or gamma,cv=C with the coefficient of variation C of its gaps.

    Raises UserError.
    """
    name, _, parameters = text.partition(",")
    if name == "gamma":
        return called(gamma, "arrivals gamma", Grammar.of(gamma), parameters)
    if parameters:
        raise UserError(f"arrivals {name} takes no parameter, not {quoted(parameters)}")
    known: dict[str, Gaps] = {
        "poisson": lambda count, random: random.exponential(1.0, count),
        "fixed": lambda count, _: np.ones(count),
    }
    if name not in known:
        raise unknown("arrivals", name, (*known, "gamma"))
    return known[name]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RateCurve:
    """Request rate by time of day: `rates` [1/s] hold from `starts_s` on, and every day is alike."""

    starts_s: Array
    rates: Array

    @property
    def mean(self) -> float:
        """Mean rate over a day [1/s]."""
        return float(np.sum(self.rates * np.diff(np.append(self.starts_s, DAY_S))) / DAY_S)

    def expected(self, until_s: float) -> tuple[Array, Array]:
        """Times at which the rate changes, up to `until_s` [s], and the arrivals expected before each of them."""
        days = np.arange(np.ceil(until_s / DAY_S))
        times = (days[:, None] * DAY_S + self.starts_s[None, :]).ravel()
        kept = times < until_s
        rates, edges = np.tile(self.rates, len(days))[kept], np.append(times[kept], until_s)
        return edges, np.append(0.0, np.cumsum(rates * np.diff(edges)))


def rate_curve(text: str) -> RateCurve:
    """The curve of `0h:2,8h:10,20h:4`: two requests a second from midnight on, ten from eight.  Raises UserError."""
    allowed = "allowed: TIME:RATE,... from 0h on, times ascending below 24h, rates from 0, such as 0h:2,8h:10,20h:4"
    starts, rates = [], []
    for step in text.split(","):
        start, _, rate = step.partition(":")
        try:
            starts.append(duration("rate_curve", start))
            rates.append(float(rate))
        except ValueError:
            raise UserError(f"rate_curve has {quoted(step)}; {allowed}") from None
    times, values = np.array(starts), np.array(rates)
    in_order = times[0] == 0.0 and np.all(np.diff(times) > 0.0) and times[-1] < DAY_S
    if not (in_order and np.all(np.isfinite(values)) and np.all(values >= 0.0) and np.any(values > 0.0)):
        raise UserError(f"rate_curve is {quoted(text)}; {allowed}")
    return RateCurve(starts_s=times, rates=values)
