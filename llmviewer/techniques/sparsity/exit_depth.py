"""Exit depths: probability that a token runs each layer, and that any token of a step does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Exits:
    """Distribution of the number of layers that a token runs.

    mean: mean share of the layers, if a token exits after each layer with the same probability.  at: (layers run,
    probability) of each exit, used instead of `mean` if not empty; the remaining tokens run all layers.
    """

    mean: float = 1.0
    at: tuple[tuple[int, float], ...] = ()

    @property
    def never(self) -> bool:
        """Whether every token runs all layers."""
        return self.mean == 1.0 and not any(probability for _, probability in self.at)

    def reach(self, layers: int) -> tuple[float, ...]:
        """Probability that a token runs each of `layers` layers."""
        if not self.at:
            stay = _stay_probability(self.mean, layers)
            return tuple(stay**layer for layer in range(layers))
        self._check(layers)
        return tuple(1.0 - sum(p for depth, p in self.at if depth <= layer) for layer in range(layers))

    def checked(self, layers: int) -> tuple[int, ...]:
        """Indices of the layers after which the confidence is checked."""
        return tuple(depth - 1 for depth, _ in self.at) if self.at else tuple(range(layers - 1))

    def _check(self, layers: int) -> None:
        for depth, _ in self.at:
            if depth >= layers:
                raise UserError(f"--early-exit: an exit after layer {depth}; allowed: 1 to {layers - 1}")


def _stay_probability(mean: float, layers: int) -> float:
    """Probability r of running one layer more, from 1 + r + ... + r^(L-1) = mean L (truncated geometric depth)."""
    if mean * layers < 1.0:
        raise UserError(f"--early-exit: mean {mean:g} of {layers} layers is less than one layer")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if sum(middle**n for n in range(layers)) > mean * layers else (middle, high)
    return high


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTokens:
    """Tokens of a step, and how many of them need logits.

    Only tokens that need logits may exit early; if any token does not (a prompt, a chunk), every layer runs.
    """

    tokens: Count
    logits: Count

    @staticmethod
    def from_graph(graph: Graph) -> StepTokens:
        """The tokens of the step that a graph describes."""
        head = (op for block, op in graph if block.name == "head")
        logits = next(op for op in head if "lm_head" in op.name.split("+"))  # fusion joins names by +
        return StepTokens(tokens=graph.blocks[0].operators[0].output_shape[0], logits=logits.output_shape[0])

    @property
    def may_exit(self) -> Count:
        """1.0 if all tokens of the step may exit early, else 0.0."""
        return np.where(self.tokens > self.logits, 0.0, 1.0)

    def deepest(self, reach: float) -> Count:
        """Probability that any token runs a layer that each one runs with `reach`: 1 - (1 - reach)^tokens."""
        return 1.0 - self.may_exit * np.power(1.0 - reach, self.logits)

    def mean(self, reaches: Iterable[float]) -> Count:
        """Mean of `deepest` over layers, summed from the first to the last."""
        summed: Count = 0.0
        count = 0
        for reach in reaches:
            summed = summed + self.deepest(reach)
            count += 1
        return summed / count
