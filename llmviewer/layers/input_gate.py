"""A gate on the input of a part: the normalised stream times the sigmoid of a narrow MLP of itself (A.X K2)."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Operator, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.layers.moe import Moe
from llmviewer.ops.elementwise import activate, activation, gated
from llmviewer.ops.gemm import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class InputGate:
    """An MLP hidden -> rank -> hidden with SiLU.  prefix: of the operators' names."""

    hidden: int
    rank: int
    dtype: Dtype
    prefix: str

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Both matrices, SiLU, and the product with the sigmoid, which is the part's input."""
        tokens = step.tokens
        down = self._linear("in_gate_a", self.hidden, self.rank).operator(x, tokens)
        act = activate(f"{self.prefix}in_gate_act", down.output, tokens, activation("silu"))
        up = self._linear("in_gate_b", self.rank, self.hidden).operator(act.output, tokens)
        y = Tensor(name=f"{self.prefix}in_gate", elements=x.elements, dtype=x.dtype)
        return down, act, up, gated(y.name, (whole(up.output), whole(x)), y, tokens, activation("sigmoid"))

    def _linear(self, name: str, width_in: int, width_out: int) -> Linear:
        return Linear(name=self.prefix + name, in_features=width_in, out_features=width_out, dtype=self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedExperts:
    """Experts behind such a gate."""

    gate: InputGate
    sparse: Moe

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of the gate and of the experts."""
        before = self.gate.operators(step, x)
        return (*before, *self.sparse.operators(step, before[-1].output))
