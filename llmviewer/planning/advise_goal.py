"""The goal of advice: a metric to improve, limits that have to hold, memory that has to suffice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmviewer.core.errors import UserError, quoted
from llmviewer.planning.run_metrics import RunMetric
from llmviewer.result.result import Result
from llmviewer.result.verdict import LEAST_GAIN
from llmviewer.simulation.limits import Limit, limit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Goal:
    """The metric to improve, and limits on latencies that have to hold."""

    metric: RunMetric
    limits: tuple[Limit, ...] = ()

    def holds(self, result: Result) -> bool:
        """Whether a result fits in memory and keeps all limits."""
        return self._lacks(result) == (1.0, 1.0)

    def is_better(self, result: Result, other: Result) -> bool:
        """Whether a result is better by LEAST_GAIN: in memory, else in the limits, else in the metric."""
        for lack, before in zip(self._lacks(result), self._lacks(other), strict=True):
            if lack != before:
                return lack * LEAST_GAIN <= before or lack == 1.0
        return self.metric.gain(self.metric.of(other), self.metric.of(result)) >= LEAST_GAIN

    def order(self, result: Result) -> tuple[float, float, float]:
        """The key by which results are sorted, the best first."""
        value = self.metric.of(result)
        return (*self._lacks(result), value if self.metric.less_is_better else -value)

    def _lacks(self, result: Result) -> tuple[float, float]:
        """Memory over the budget, and the largest latency over its limit; 1 where nothing is lacking."""
        return _memory_lack(result), max([1.0, *(self.over(one, result) for one in self.limits)])

    @staticmethod
    def over(one: Limit, result: Result) -> float:
        """A latency over its limit; 0 for one that is not defined."""
        latency = float(getattr(result, one.metric))
        return latency / one.seconds if latency > 0.0 else 0.0


def _memory_lack(result: Result) -> float:
    """Memory over the budget, above 1 if a device or the host lacks any."""
    if result.fits:
        return 1.0
    memory = result.memory
    return max(float(memory["total_bytes"]) / float(memory["budget_bytes"]), 1.0 + 1e-9)


def limits(texts: Mapping[str, str | float | None]) -> tuple[Limit, ...]:
    """The limits of `--ttft 500ms`, by option.  Raises UserError; one request has no percentiles."""
    found = tuple(limit(name, text) for name, text in texts.items() if text is not None)
    for one in found:
        if one.statistic != "mean":
            name = one.metric.removesuffix("_s")
            raise UserError(f"{name} is {quoted(texts[name])}; allowed: a time such as 80ms; percentiles need a load")
    return found
