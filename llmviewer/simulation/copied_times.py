"""Times of steps whose weights are copied from the host while kernels run: a function of the time of the kernels."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import field

import numpy as np

from llmviewer.analysis.evaluation import evaluate
from llmviewer.api.configuration import Configuration
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Step
from llmviewer.simulation.prices import Prices
from llmviewer.simulation.table_building import prompts

#: Relative step of the time of kernels over which the slope of a step's time is taken.
NEAR = 0.01


@frozen(eq=False)
class CopiedTimes:
    """Times of the steps of one replica [s].

    Layers are alike and all of their offloaded weights are copied in every pass, so that a step takes as long as the
    slower of copies and kernels of each layer, whatever its tokens are.  plain: times of the steps with all weights on
    the device.  request_s: host time of a request before its first token.  kernels_s, steps_s: of passes over ever
    more tokens, ascending; beyond the last, kernels alone grow.  ahead: tokens of each sequence for which a step's
    time is a line.
    """

    plain: Prices
    request_s: float
    kernels_s: list[float] = field(repr=False)
    steps_s: list[float] = field(repr=False)
    ahead: int

    @property
    def tokens_per_round(self) -> float:
        """Tokens of a decode step of a sequence."""
        return self.plain.tokens_per_round

    def step_s(self, kernels_s: float) -> float:
        """Time of a step whose kernels take so long [s]."""
        known, steps = self.kernels_s, self.steps_s
        if kernels_s >= known[-1]:
            return kernels_s + steps[-1] - known[-1]
        at = max(bisect_right(known, kernels_s), 1)
        share = max((kernels_s - known[at - 1]) / (known[at] - known[at - 1]), 0.0)
        return steps[at - 1] + share * (steps[at] - steps[at - 1])

    def decode_line(self, sequences: int, context: float) -> tuple[float, float, float]:
        """Time of a decode step as a line over the next few tokens of each sequence."""
        base, slope, end = self.plain.decode_line(sequences, context)
        kernels_s = base + slope * context
        found = self.step_s(kernels_s)
        rise = slope * (self.step_s(kernels_s * (1.0 + NEAR)) - found) / (NEAR * kernels_s)
        return found - rise * context, rise, min(end, context + self.ahead * sequences)

    def mixed_s(self, sequences: int, context: float, tokens: int, pairs: float, prompts: int) -> float:
        """Time of a step that also prefills prompt tokens [s]."""
        return self.step_s(self.plain.mixed_s(sequences, context, tokens, pairs, prompts))

    def shared_s(self, sequences: float, tokens: float) -> float:
        """No work is shared: ranks of experts do not copy."""
        return 0.0

    def stages(self, sequences: int, tokens: int) -> tuple[float, ...]:
        """One stage: pipelines do not copy."""
        return (1.0,)


def passes_s(one: Configuration, on_device: Configuration, most_tokens: int) -> tuple[list[float], list[float]]:
    """Times of passes over ever more tokens [s]: of their kernels, and with the copies of weights.

    on_device: the configuration with all of its weights on the device.
    """
    counts = np.unique(np.round(2.0 ** np.arange(0.0, np.log2(most_tokens) + 0.25, 0.25)))
    step = Step((prompts(1.0, counts, 0.0, 1.0),))
    found = [
        np.maximum.accumulate(np.asarray(evaluate(each.model, each.system, step).time_s) * np.ones(len(counts)))
        for each in (on_device, one)
    ]
    kept = np.append(True, np.diff(found[0]) > 0.0)
    return found[0][kept].tolist(), found[1][kept].tolist()
