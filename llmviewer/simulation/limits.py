"""Limits that users set on latencies: `p99:2s`, or `80ms` of the mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.parsing import duration
from llmviewer.language.quantity import LATENCIES

#: Statistics of a latency that a limit may hold, with their quantile; the mean has none.
QUANTILES: Mapping[str, float] = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
STATISTICS = ("mean", *QUANTILES)
#: Option -> latency that it limits.
METRICS: Mapping[str, str] = {name.removesuffix("_s"): name for name in LATENCIES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A latency's statistic may not exceed `seconds`.  metric: ttft_s, tpot_s or e2e_s."""

    metric: str
    statistic: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.metric.removesuffix('_s').upper()} {self.statistic} {self.seconds:g} s"


def limit(option: str, text: str | float) -> Limit:
    """The limit of `--ttft p99:2s`; without a statistic it is of the mean.  A number is seconds.  Raises UserError."""
    statistic, colon, time = text.rpartition(":") if isinstance(text, str) else ("", "", text)
    if colon and statistic not in STATISTICS:
        raise unknown(f"statistic of {option}", statistic, STATISTICS)
    seconds = duration(option, time)
    if not 0.0 < seconds < float("inf"):
        raise UserError(f"{option} is {quoted(text)}; allowed: a time above 0, such as 2s or p99:80ms")
    return Limit(metric=METRICS[option], statistic=statistic or "mean", seconds=seconds)
