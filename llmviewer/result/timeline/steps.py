"""Facts of prefill and of each decode step as a whole: intervals of their times, and the KV cache after them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.capacity import memory_of
from llmviewer.core.counts import Array
from llmviewer.core.workload import Request
from llmviewer.result.describe import number
from llmviewer.result.stages import request_at, system_at, value_at


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepFacts:
    """Facts of the steps of one point.

    cache_bytes: KV cache of one device after prefill, and after each step.  ratios: stage -> bounds of its time over
    the time; empty for ideal times.
    """

    cache_bytes: Array
    ratios: Mapping[str, Array]

    @classmethod
    def of(cls, analysis: Analysis, steps: int, point: int) -> StepFacts:
        """Facts of prefill and the first `steps` decode steps."""
        ratios: Mapping[str, Array] = {}
        if analysis.calibration is not None:
            from llmviewer.result import interval  # ideal times have no interval

            ratios = {name: bounds[:, point] for name, bounds in interval.step_ratios(analysis).items()}
        return cls(cache_bytes=_cache_bytes(analysis, steps, point), ratios=ratios)

    def at(self, step: int, seconds: float) -> dict[str, object]:
        """Facts of a decode step, counted from 1, that takes `seconds`."""
        return {**self.interval("decode", seconds), "kv_cache_bytes": self.cache(step)}

    def cache(self, step: int) -> int | float | None:
        """KV cache after prefill (step 0) or a decode step [byte]."""
        return number(float(self.cache_bytes[step]))

    def interval(self, stage: str, seconds: float) -> dict[str, object]:
        """The time of a prefill or decode step with its interval."""
        if stage not in self.ratios:
            return {"time_s": seconds}
        from llmviewer.result import interval

        return {"time_s": seconds, "time_interval_s": interval.levels(self.ratios[stage][:, None] * seconds, 0)}


def _cache_bytes(analysis: Analysis, steps: int, point: int) -> Array:
    """KV cache of one device after 0 ... steps decode steps [byte].

    A request of t + 1 output tokens has stored input_len + t tokens when it ends, so the memory of shorter requests is
    the memory along the way.  A batching policy reserves the cache of its running sequences: it does not grow.
    """
    whole = value_at(analysis.memory.kv_cache_bytes, point)
    if analysis.running is not None:
        return np.full(steps + 1, whole)
    request, system = request_at(analysis, point), system_at(analysis, point)
    further, plan = value_at(request.output_len, 0) - 1.0, analysis.schedule
    per_step = value_at(system.generation.tokens, 0)
    if system.generation.counts_passes:  # branches end at different times: drawn as growing evenly
        first = int(plan.decode_starts[point])
        taken = plan.repeats[first : first + int(plan.decode_steps[point])]
        per_step *= further / max(float(np.sum(taken)), 1.0)
    tokens = np.minimum(np.floor(np.arange(steps + 1.0) * per_step + 1e-9), further)
    ones = np.ones(steps + 1)
    shorter = Request(batch_size=request.batch_size * ones, input_len=request.input_len * ones, output_len=1.0 + tokens)
    return np.asarray(memory_of(analysis.model, system, shorter).kv_cache_bytes) * ones
