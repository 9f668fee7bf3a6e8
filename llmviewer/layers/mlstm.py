"""The mLSTM of xLSTM (arXiv 2405.04517, 2503.13427): a matrix memory per head with exponential gates."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.dtypes import DTYPES, Dtype
from llmviewer.core.ir import Operator, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.layers.gated_delta_net import SIGMOID
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import gated_norm, layer_norm
from llmviewer.ops.recurrence import Recurrence, StateUpdate

#: Vector FLOP per token and head: soft caps of both gates, the running maximum of the log gates, scales of state and
#: input, and the lower bound of the normalizer.
GATE_FLOPS = 12.0
#: Exponentials per token and head: two soft caps, the log-sigmoid of the forget gate, two scales, the lower bound.
GATE_SPECIAL = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixLstm:
    """A mixer with a state of key_width / heads x value_width / heads elements per head, a normalizer and a maximum.

    key_width, value_width: over all heads.  The state is kept in 32 bits (`inference_state_dtype`).
    """

    hidden: int
    heads: int
    key_width: int
    value_width: int
    dtype: Dtype

    def states(self) -> tuple[State, ...]:
        """The memory, normalizer and maximum of all heads."""
        return (self._rule().state(),)

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Queries, keys, values, output gate, input and forget gates, recurrence, gated norm, out_proj."""
        tokens = step.tokens
        project = self._linear("qkv_proj", 2 * self.key_width + self.value_width).operator(x, tokens)
        out_gate = self._linear("ogate_proj", self.value_width).operator(x, tokens)
        gates = Linear(
            name="ifgate_proj", in_features=self.hidden, out_features=2 * self.heads, dtype=self.dtype, bias=True
        ).operator(x, tokens)
        rule = self._rule().operator(step, (whole(project.output), whole(gates.output)))
        norm = layer_norm("mixer_norm", self.value_width, self.dtype, bias=False)
        normed = gated_norm(norm, rule.output, out_gate.output, tokens, SIGMOID)
        last = Linear(name="out_proj", in_features=self.value_width, out_features=self.hidden, dtype=self.dtype)
        return (project, out_gate, gates, rule, normed, last.operator(normed.output, tokens))

    def _linear(self, name: str, width: int) -> Linear:
        return Linear(name=name, in_features=self.hidden, out_features=width, dtype=self.dtype)

    def _rule(self) -> Recurrence:
        memory = self.key_width * self.value_width // self.heads
        return Recurrence(
            elements=memory + self.key_width + self.heads,
            width=self.value_width,
            rule=StateUpdate.DECAY,
            dtype=DTYPES["fp32"],
            vector=self.value_width + self.heads * GATE_FLOPS,
            special=self.heads * GATE_SPECIAL,
        )
