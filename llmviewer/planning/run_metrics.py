"""Metrics of one run by name, with their direction, interval and probability of a difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from llmviewer.core.errors import UserError, unknown
from llmviewer.planning.chance import probability_below
from llmviewer.result.columns import MEMORY_PARTS
from llmviewer.result.result import Result
from llmviewer.result.stages import value_at

#: Level of the intervals that are printed [%].
LEVEL = "80"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetric:
    """A number of a Result.

    value: reads it from a point; None if it is not defined there.  less_is_better: the direction of a gain.
    time: the latency whose interval, in proportion, is that of the metric; "" for counts, which have none.
    """

    name: str
    value: Callable[[Result, int], float | None]
    less_is_better: bool
    time: str = ""

    def of(self, result: Result, point: int = 0) -> float:
        """The value of a point of a result.  Raises UserError where it is not defined."""
        found = self.value(result, point)
        if found is None or not np.isfinite(found):
            raise UserError(f"{self.name} has no value here; {REASONS.get(self.name, 'choose another metric')}")
        return float(found)

    def ratios(self, result: Result) -> Mapping[str, tuple[float, float]]:
        """Bounds over the value by level of the interval; empty for counts and ideal times."""
        known = result.metrics()["intervals"].get(self.time) if self.time else None
        if not known:
            return {}
        middle = float(getattr(result, self.time))
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


REASONS = {
    "tpot_s": "no pass follows the one of the first token; choose ttft_s, or a larger output_len",
    "decode_mbu": "there are no decode steps",
}


def _analysis(name: str, result: Result, point: int) -> float:
    return float(value_at(np.asarray(getattr(result.analysis, name)), point))


def _rate(share: Callable[[Result, int], float], result: Result, point: int) -> float:
    return _analysis("output_tokens_per_s", result, point) / share(result, point)


def _memory_part(name: str, result: Result, point: int) -> float:
    return float(value_at(np.asarray(getattr(result.analysis.memory, name)), point))


def _limit(name: str, result: Result, point: int) -> float | None:
    found: Any = result.memory_at(point)[name]
    return None if found is None else float(found)


def _users(result: Result, point: int) -> float:
    return float(value_at(result.analysis.request.batch_size, point))


def _devices(result: Result, point: int) -> float:
    del point
    return float(result.analysis.system.parallelism.devices)


def _one(result: Result, point: int) -> float:
    del result, point
    return 1.0


def _all() -> list[RunMetric]:
    found = [
        RunMetric(name=name, value=partial(_analysis, name), less_is_better=True, time=name)
        for name in ("ttft_s", "tpot_s", "e2e_s")
    ]
    shares = {"": _one, "_per_user": _users, "_per_device": _devices}
    found += [
        RunMetric(name=f"output_tokens_per_s{per}", value=partial(_rate, share), less_is_better=False, time="e2e_s")
        for per, share in shares.items()
    ]
    found += [
        RunMetric(name=name, value=partial(_analysis, name), less_is_better=False, time=time)
        for name, time in (("prefill_mfu", "ttft_s"), ("decode_mbu", "tpot_s"))
    ]
    found += [RunMetric(name=one, value=partial(_memory_part, one), less_is_better=True) for one in MEMORY_PARTS]
    found += [
        RunMetric(name=name, value=partial(_limit, name), less_is_better=False)
        for name in ("max_batch_size", "max_context_len", "max_concurrent_requests")
    ]
    return found


#: Metrics by name.
RUN_METRICS: dict[str, RunMetric] = {one.name: one for one in _all()}


def run_metric(name: object) -> RunMetric:
    """The metric of a name, which may start with its group (`memory.`, `metrics.`).  Raises UserError."""
    plain = name.removeprefix("memory.").removeprefix("metrics.") if isinstance(name, str) else name
    if plain not in RUN_METRICS:
        raise unknown("metric", name, RUN_METRICS)
    return RUN_METRICS[str(plain)]
