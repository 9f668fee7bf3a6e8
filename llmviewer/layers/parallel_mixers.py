"""Two mixers side by side in one layer: attention and Mamba-2 heads read the same input (Falcon-H1)."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.ir import Operator, State, Tensor
from llmviewer.core.workload import Step
from llmviewer.layers.decoder import Mixer
from llmviewer.ops.elementwise import add


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelMixers:
    """A mixer that sums the outputs of two; both keep their states.  Source: Falcon-H1, arXiv 2507.22448."""

    first: Mixer
    second: Mixer

    def states(self) -> tuple[State, ...]:
        """The states of both mixers."""
        return (*self.first.states(), *self.second.states())

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of both mixers, and the sum of their outputs."""
        first, second = self.first.operators(step, x), self.second.operators(step, x)
        return (*first, *second, add("mixer_add", first[-1].output, second[-1].output, step.tokens))
