"""Metrics of one run by name, with their direction, interval and probability of a difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llmviewer.core.errors import UserError, unknown
from llmviewer.core.frozen import frozen
from llmviewer.language.quantity import LIMITS, MEMORY, METRICS, Quantity
from llmviewer.planning.chance import probability_below
from llmviewer.result.result import Result
from llmviewer.result.stages import value_at

#: Level of the intervals that are printed [%].
LEVEL = "80"


@frozen(kw_only=False)
class RunMetric:
    """A figure of a Result, as it is declared."""

    quantity: Quantity

    @property
    def name(self) -> str:
        """Name of the figure."""
        return self.quantity.name

    @property
    def less_is_better(self) -> bool:
        """The direction of a gain."""
        return bool(self.quantity.less_is_better)

    def value(self, result: Result, point: int) -> float | None:
        """The value of a point; None if it is not defined there."""
        if self.name in METRICS:
            return float(value_at(result.figures[self.name], point))
        if self.name in MEMORY:
            return float(value_at(np.asarray(getattr(result.analysis.memory, self.name)), point))
        found: Any = result.memory_at(point)[self.name]
        return None if found is None else float(found)

    def of(self, result: Result, point: int = 0) -> float:
        """The value of a point of a result.  Raises UserError where it is not defined."""
        found = self.value(result, point)
        if found is None or not np.isfinite(found):
            raise UserError(f"{self.name} has no value here; {self.quantity.undefined or 'choose another metric'}")
        return float(found)

    def ratios(self, result: Result) -> Mapping[str, tuple[float, float]]:
        """Bounds over the value by level of the interval; empty for counts and ideal times."""
        known = result.intervals().get(self.quantity.interval)
        if not known:
            return {}
        middle = float(getattr(result, self.quantity.interval))
        found = {level: (low / middle, high / middle) for level, (low, high) in known.items()}
        if self.less_is_better:
            return found
        return {level: (1.0 / high, 1.0 / low if low else np.inf) for level, (low, high) in found.items()}

    def interval(self, result: Result) -> list[float] | None:
        """Bounds of the 80 % interval of the value; None where it is not known."""
        bounds = self.ratios(result).get(LEVEL)
        return None if bounds is None else [self.of(result) * bound for bound in bounds]

    def gain(self, before: float, after: float) -> float:
        """The factor by which a value is better than another one, above 1 for a gain."""
        best, worst = (after, before) if self.less_is_better else (before, after)
        return worst / best if best else np.inf

    def probability_less(self, one: Result, other: Result) -> float | None:
        """The probability that the value of `one` is less than that of `other`, by independent errors of both."""
        ratios = self.ratios(one), self.ratios(other)
        if not all(ratios):
            return None
        return probability_below((self.of(one), ratios[0]), (self.of(other), ratios[1]))


#: Metrics by name.
RUN_METRICS: dict[str, RunMetric] = {name: RunMetric(one) for name, one in (METRICS | MEMORY | LIMITS).items()}


def run_metric(name: object) -> RunMetric:
    """The metric of a name, which may start with its group (`memory.`, `metrics.`).  Raises UserError."""
    plain = name.removeprefix("memory.").removeprefix("metrics.") if isinstance(name, str) else name
    if plain not in RUN_METRICS:
        raise unknown("metric", name, RUN_METRICS)
    return RUN_METRICS[str(plain)]
