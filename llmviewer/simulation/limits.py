"""Limits that users set on latencies (`p99:2s`, `80ms` of the mean), and the highest rate that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.parsing import duration
from llmviewer.language.quantity import LATENCIES

#: Statistics of a latency that a limit may hold, with their quantile; the mean has none.
QUANTILES: Mapping[str, float] = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
STATISTICS = ("mean", *QUANTILES)
#: Option -> latency that it limits.
METRICS: Mapping[str, str] = {name.removesuffix("_s"): name for name in LATENCIES}


@frozen
class Limit:
    """A latency's statistic may not exceed `seconds`.  metric: ttft_s, tpot_s or e2e_s."""

    metric: str
    statistic: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.metric.removesuffix('_s').upper()} {self.statistic} {self.seconds:g} s"


def limit(option: str, text: str | float) -> Limit:
    """The limit of `--ttft p99:2s`, or `p99=2s`; without a statistic of the mean.  A number is seconds.

    Raises UserError.
    """
    statistic, colon, time = text.replace("=", ":").rpartition(":") if isinstance(text, str) else ("", "", text)
    if colon and statistic not in STATISTICS:
        raise unknown(f"statistic of {option}", statistic, STATISTICS)
    seconds = duration(option, time)
    if not 0.0 < seconds < float("inf"):
        raise UserError(f"{option} is {quoted(text)}; allowed: a time above 0, such as 2s or p99:80ms")
    return Limit(metric=METRICS[option], statistic=statistic or "mean", seconds=seconds)


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
