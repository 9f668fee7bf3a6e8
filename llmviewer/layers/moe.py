"""Mixture of experts: router, chosen experts, weighted sum, shared experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import BUFFER, Access, Operator, Role, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Step
from llmviewer.layers.mlp import Mlp
from llmviewer.ops.elementwise import Activation, activate, activation, add, elementwise, elementwise_as
from llmviewer.ops.gemm import EXPERT_PREFIX, GemmShape, Linear

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
