"""The part of some heads between the final norm and the matrix to the vocabulary, as in BERT's prediction head."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.counts import Count
from llmviewer.core.ir import Operator, Tensor
from llmviewer.ops.elementwise import Activation, activate
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A matrix, an activation and a norm, over the rows that need logits."""

    dense: Linear
    activation: Activation
    norm: Norm

    def on_rows(self, rows: Count, x: Tensor) -> tuple[Operator, ...]:
        """The operators over `rows` rows."""
        dense = self.dense.operator(x, rows)
        act = activate("prediction_act", dense.output, rows, self.activation)
        return (dense, act, self.norm.operator(act.output, rows))
