"""Lightning attention (arXiv 2401.04658, MiniMax-01 arXiv 2501.08313): linear attention with a fixed decay per head."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Operator, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.ops.elementwise import ACTIVATIONS, Activation, activate, gated
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import rms_norm
from llmviewer.ops.recurrence import Recurrence, StateUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningAttention:
    """A mixer with `heads` states of head_dim x head_dim.  activation: applied to queries, keys and values."""

    hidden: int
    heads: int
    head_dim: int
    activation: Activation
    dtype: Dtype

    @property
    def _width(self) -> int:
        return self.heads * self.head_dim

    def states(self) -> tuple[State, ...]:
        """The recurrent state: the sum of decayed products of keys and values."""
        return (self._rule().state(),)

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators: qkv_proj, activation, recurrence, norm over all heads, sigmoid gate of the input, out_proj."""
        tokens = step.tokens
        project = self._linear("qkv_proj", self.hidden, 3 * self._width).operator(x, tokens)
        qkv = activate("qkv_act", project.output, tokens, self.activation)
        recur = self._rule().operator(step, (whole(qkv.output),))
        norm = rms_norm("mixer_norm", self._width, self.dtype).operator(recur.output, tokens)
        gate = self._linear("output_gate", self.hidden, self._width).operator(x, tokens)
        y = Tensor(name="mixer_gate", elements=norm.output.elements, dtype=x.dtype)
        both = (whole(gate.output), whole(norm.output))
        gating = gated("mixer_gate", both, y, tokens, ACTIVATIONS["sigmoid"])
        out = self._linear("out_proj", self._width, self.hidden).operator(y, tokens)
        return (project, qkv, recur, norm, gate, gating, out)

    def _linear(self, name: str, width_in: int, width_out: int) -> Linear:
        return Linear(name=name, in_features=width_in, out_features=width_out, dtype=self.dtype)

    def _rule(self) -> Recurrence:
        elements = self._width * self.head_dim
        return Recurrence(
            elements=elements, width=self._width, rule=StateUpdate.DECAY, dtype=self.dtype, vector=0.0, special=0.0
        )
