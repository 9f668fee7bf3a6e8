"""Dense feed-forward parts: gated (SwiGLU, GeGLU) or not, with gate and up fused or separate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Access, Operator, Role, Tensor, whole
from llmviewer.core.kinds import OperatorRole
from llmviewer.core.workload import Step
from llmviewer.ops.elementwise import Activation, activate, gated
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm, rms_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """A feed-forward part: hidden -> intermediate -> hidden.

    fused: gate and up are one matrix.  prefix: of the operators' names (`shared_`, `expert_`).
    experts: number of such parts (mixture of experts).  norm: an RMSNorm before the last matrix (BitNet).
    parameters: learned numbers of the activation (xIELU).  out_bias: a bias on the last matrix alone (TeleChat).
    """

    hidden: int
    intermediate: int
    activation: Activation
    dtype: Dtype
    gated: bool = True
    fused: bool = False
    bias: bool = False
    prefix: str = ""
    experts: int = 1
    out_bias: bool = False
    norm: bool = False
    parameters: int = 0

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The matrices and the activation over all tokens of the step."""
        return self.on_rows(step.tokens, x)

    def on_rows(self, rows: Count, x: Tensor, active: Count = 1.0) -> tuple[Operator, ...]:
        """The operators over `rows` rows (tokens x chosen experts) that use `active` distinct experts."""
        into = tuple(linear.operator(x, rows, active=active) for linear in self._into())
        act: tuple[Operator, ...] = (self._activate(rows, into),)
        if self.norm:
            act += (rms_norm("mlp_mid_norm", self.intermediate, self.dtype).operator(act[-1].output, rows),)
        down = self._linear("down_proj", self.intermediate, self.hidden)
        return (*into, *act, down.operator(act[-1].output, rows, active=active))

    def _into(self) -> tuple[Linear, ...]:
        if not self.gated:
            return (self._linear("up_proj", self.hidden, self.intermediate),)
        if self.fused:
            return (self._linear("gate_up_proj", self.hidden, 2 * self.intermediate),)
        return tuple(self._linear(name, self.hidden, self.intermediate) for name in ("gate_proj", "up_proj"))

    def _linear(self, name: str, width_in: int, width_out: int) -> Linear:
        return Linear(
            name=self.prefix + name,
            in_features=width_in,
            out_features=width_out,
            dtype=self.dtype,
            bias=self.bias or (self.out_bias and name == "down_proj"),
            experts=self.experts,
            parts=2.0 if self.experts > 1 and name in ("gate_proj", "up_proj") and self.gated else 1.0,
            role=self._role(name),
        )

    def _role(self, name: str) -> OperatorRole:
        """The role of a linear layer; experts and shared experts have none."""
        if self.prefix:
            return OperatorRole.OTHER
        return OperatorRole.FEED_FORWARD_OUTPUT if name == "down_proj" else OperatorRole.FEED_FORWARD_INPUT

    def _activate(self, rows: Count, into: tuple[Operator, ...]) -> Operator:
        name = f"{self.prefix}act" if self.prefix else "mlp_act"
        if self.gated:
            y = Tensor(name=name, elements=rows * (1.0 * self.intermediate), dtype=into[0].output.dtype)
            act = gated(name, tuple(_read(op) for op in into), y, rows, self.activation)
        else:
            act = activate(name, into[0].output, rows, self.activation)
        if not self.parameters:
            return act
        weight = Tensor(name=f"{name}.weight", elements=1.0 * self.parameters, dtype=self.dtype, role=Role.WEIGHT)
        return replace(act, reads=(*act.reads, whole(weight)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """BERT's prediction head: a matrix, an activation and a norm before lm_head, over the rows that need logits."""

    dense: Linear
    activation: Activation
    norm: Norm

    def on_rows(self, rows: Count, x: Tensor) -> tuple[Operator, ...]:
        """The operators over `rows` rows."""
        dense = self.dense.operator(x, rows)
        act = activate("prediction_act", dense.output, rows, self.activation)
        return (dense, act, self.norm.operator(act.output, rows))


def _read(operator: Operator) -> Access:
    return whole(operator.output)
