"""Feed-forward parts: dense (gated or not), a mixture of experts, and both in parallel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import BUFFER, Access, Operator, Role, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Step
from llmviewer.ops.elementwise import (
    Activation,
    Norm,
    activate,
    activation,
    add,
    elementwise,
    elementwise_as,
    gated,
    rms_norm,
)
from llmviewer.ops.gemm import EXPERT_PREFIX, GemmShape, Linear


@frozen
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
            act = gated(name, tuple(whole(op.output) for op in into), y, rows, self.activation)
        else:
            act = activate(name, into[0].output, rows, self.activation)
        if not self.parameters:
            return act
        weight = Tensor(name=f"{name}.weight", elements=1.0 * self.parameters, dtype=self.dtype, role=Role.WEIGHT)
        return replace(act, reads=(*act.reads, whole(weight)))


@frozen
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


#: Per expert for softmax or sigmoid of the router's logits, as for attention scores; selection is not counted.
ROUTER_FLOPS = 5.0


def distinct_experts(experts: float, chosen: float, tokens: Count) -> Count:
    """Expected number of distinct experts that `tokens` tokens use: N (1 - (1 - k/N)^T).

    Each token chooses k = `chosen` of N = `experts` independently and uniformly.  One token uses k; at most N are used.
    """
    return experts * (1.0 - np.power(1.0 - chosen / experts, tokens))


def _in_runs(operator: Operator, runs: tuple[tuple[Count, Count], ...]) -> Operator:
    """The operator with the runs of tokens whose choices of experts are related, if it is a grouped product."""
    shape = operator.shape
    if not isinstance(shape, GemmShape):
        return operator
    return replace(operator, shape=replace(shape, runs=runs))


def weighted_sum(rows: Access, weights: Access, tokens: Count, width: Count, chosen: Count) -> Operator:
    """The sum of each token's `chosen` rows, times their weights: 2 FLOP per row and element."""
    y = Tensor(name="expert_combine", elements=tokens * (1.0 * width), dtype=rows.tensor.dtype)
    work = Activation(2.0 * chosen, 0.0)  # type: ignore[arg-type]
    return elementwise_as(OperatorRole.EXPERT_COMBINE, y.name, (rows, weights), y, tokens, work)


@frozen
class Moe:
    """A feed-forward part with `experts` experts, of which each token uses `chosen`, and an optional shared expert.

    expert: one expert.  shared: the shared expert(s) as one Mlp, or None.
    shared_gate: the shared expert's output is scaled by a sigmoid of one logit (Qwen-MoE).
    router_bias: a bias in the router's product; correction_bias: stored values added to the scores for selection, a
    buffer; correction_weight: the same as parameters (ERNIE 4.5).
    expert_scale: a learned factor per expert, applied to its weight in the sum (Gemma 4).
    identities: further experts that return their input; tokens choose them like others (LongCat's zero experts).
    scored: shared experts that the router also scores (Inkling).
    latent: smaller width of the experts, between two projections, 0 = none (Nemotron 3).
    capacity: most tokens of one sequence that an expert takes, 0 = no limit (Switch Transformers).
    """

    expert: Mlp
    experts: int
    chosen: int
    dtype: Dtype
    hidden: int
    shared: Mlp | None = None
    shared_gate: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    correction_weight: bool = False
    expert_scale: bool = False
    identities: int = 0
    scored: int = 0
    latent: int = 0
    capacity: int = 0

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Router, experts over tokens x chosen rows, weighted sum, shared expert, sum of both."""
        return self.routed_by(x, step, x)

    def routed_by(self, router_input: Tensor, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators with separate inputs: `router_input` for the router, `x` for the experts."""
        tokens = step.tokens
        router = self._router(tokens, router_input)
        into, inner = self._latent_in(tokens, x)
        rows = self._routed_tokens(step) * (1.0 * self.chosen)
        active = distinct_experts(self.experts + self.identities, self.chosen, tokens)
        if self.identities:  # the share of choices that fall on experts with weights
            rows, active = (count * (self.experts / (self.experts + self.identities)) for count in (rows, active))
        expert = replace(self.expert, experts=self.experts, prefix=EXPERT_PREFIX)
        runs = tuple(group.runs for group in step.groups)
        routed = tuple(_in_runs(operator, runs) for operator in expert.on_rows(rows, inner, active))
        combine = self._combine(tokens, routed[-1].output, router[-1].output)
        out = self._latent_out(tokens, combine.output)
        operators = (*router, *into, *routed, combine, *out)
        return operators + self._shared(step, x, operators[-1].output)

    def _routed_tokens(self, step: Step) -> Count:
        """Tokens that experts take if all experts are chosen equally often; tokens beyond their capacity pass by."""
        if not self.capacity:
            return step.tokens
        most = self.capacity * self.experts / self.chosen
        return total(group.batch_size * np.minimum(group.new_tokens, most) for group in step.groups)

    def _router(self, tokens: Count, x: Tensor) -> tuple[Operator, ...]:
        linear = Linear(
            name="router",
            in_features=self.hidden,
            out_features=self.experts + self.identities + self.scored,
            dtype=self.dtype,
            bias=self.router_bias,
            role=OperatorRole.ROUTER,
        )
        logits = linear.operator(x, tokens)
        stored = {
            f"router_correction{BUFFER}": self.correction_bias,
            "router_correction.weight": self.correction_weight,
            "expert_scale.weight": self.expert_scale,
        }
        reads = [whole(logits.output)]
        for name in (name for name, present in stored.items() if present):
            per_expert = Tensor(
                name=name, elements=float(self.experts + self.identities), dtype=self.dtype, role=Role.WEIGHT
            )
            reads.append(whole(per_expert))
        y = Tensor(name="router_softmax", elements=logits.output.elements, dtype=x.dtype)
        scores = elementwise("router_softmax", tuple(reads), y, tokens, flops=ROUTER_FLOPS, special=1.0)
        return logits, replace(scores, kind=Kind.SOFTMAX)

    def _combine(self, tokens: Count, rows: Tensor, scores: Tensor) -> Operator:
        weights = Access(scores, tokens * (1.0 * self.chosen))
        return weighted_sum(whole(rows), weights, tokens, self.latent or self.hidden, self.chosen)

    def _latent_in(self, tokens: Count, x: Tensor) -> tuple[tuple[Operator, ...], Tensor]:
        if not self.latent:
            return (), x
        linear = Linear(name="latent_in_proj", in_features=self.hidden, out_features=self.latent, dtype=self.dtype)
        operator = linear.operator(x, tokens)
        return (operator,), operator.output

    def _latent_out(self, tokens: Count, x: Tensor) -> tuple[Operator, ...]:
        if not self.latent:
            return ()
        linear = Linear(name="latent_out_proj", in_features=self.latent, out_features=self.hidden, dtype=self.dtype)
        return (linear.operator(x, tokens),)

    def _shared(self, step: Step, x: Tensor, routed: Tensor) -> tuple[Operator, ...]:
        if self.shared is None:
            return ()
        tokens = step.tokens
        operators = replace(self.shared, prefix="shared_").operators(step, x)
        if self.shared_gate:
            linear = Linear(name="shared_gate", in_features=self.hidden, out_features=1, dtype=self.dtype)
            logit = linear.operator(x, tokens)
            sigmoid = activate("shared_sigmoid", logit.output, tokens, activation("sigmoid"))
            out = operators[-1].output
            y = Tensor(name="shared_scale", elements=out.elements, dtype=out.dtype)
            scale = elementwise("shared_scale", (whole(out), whole(sigmoid.output)), y, tokens, flops=1.0)
            operators += (logit, sigmoid, scale)
        return (*operators, add("shared_add", routed, operators[-1].output, tokens))


@frozen
class DenseAndSparse:
    """Both parts read the residual stream: norms before each part and the router, norms after each, then the sum."""

    dense: Mlp
    sparse: Moe
    dtype: Dtype

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of both parts and their sum.  x: the residual stream before any norm."""
        before = self._norm("mlp_norm", step, x)
        dense = self.dense.operators(step, before.output)
        dense_out = self._norm("dense_post_norm", step, dense[-1].output)
        router_in, expert_in = self._norm("router_norm", step, x), self._norm("expert_norm", step, x)
        sparse = self.sparse.routed_by(router_in.output, step, expert_in.output)
        sparse_out = self._norm("expert_post_norm", step, sparse[-1].output)
        both = add("branch_add", dense_out.output, sparse_out.output, step.tokens)
        return (before, *dense, dense_out, router_in, expert_in, *sparse, sparse_out, both)

    def _norm(self, name: str, step: Step, x: Tensor) -> Operator:
        return rms_norm(name, self.sparse.hidden, self.dtype).operator(x, step.tokens)


@frozen
class Shortcut:
    """Both parts read the same normalised input and their outputs are added (LongCat-Flash).

    The model adds the experts' output one attention later, so that their communication is hidden; the work is equal.
    """

    dense: Mlp
    sparse: Moe

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of both parts and their sum."""
        sparse, dense = self.sparse.operators(step, x), self.dense.operators(step, x)
        return (*sparse, *dense, add("branch_add", sparse[-1].output, dense[-1].output, step.tokens))


@frozen
class NormedExperts:
    """Experts with a norm after the sum of routed and shared ones (A.X K1)."""

    sparse: Moe
    norm: Norm

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of the experts and the norm."""
        sparse = self.sparse.operators(step, x)
        return (*sparse, self.norm.operator(sparse[-1].output, step.tokens))
