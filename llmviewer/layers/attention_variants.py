"""Softmax attention with a further part: differential attention and attention with a dynamic mask."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

from llmviewer.core.counts import Count
from llmviewer.core.ir import Operator, Role, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.elementwise import elementwise
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm, NormKind

Variant = TypeVar("Variant", bound=Attention)

#: Per score that a dynamic mask is added to: one sum; the choice of the kept keys is not counted.
MASK_FLOPS = 1.0
#: Per element of the dynamic mask: softplus, product and exponential.
GATE_FLOPS, GATE_SPECIAL = 5.0, 3.0


def varied(attention: Attention, variant: type[Variant]) -> Variant:
    """A copy of the attention as an instance of `variant`."""
    return variant(**{field.name: getattr(attention, field.name) for field in fields(attention)})


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentialAttention(Attention):
    """The difference of two attention maps (arXiv 2410.05258).

    Every query head is applied to both halves of the values, as two calls of a usual attention kernel: its scores and
    its weighted values are computed twice, over the same cache.
    """

    def shape(self, step: Step) -> AttentionShape:
        """Two outputs per query head."""
        return replace(Attention.shape(self, step), heads=2 * self.heads)

    def _after(self, tokens: Count, out: Tensor, before: tuple[Operator, ...]) -> tuple[Operator, ...]:
        """The difference, weighted by four learned vectors; a norm over pairs of heads; the output projection."""
        lambdas = Tensor(name="lambda.weight", elements=4.0 * self.head_dim, dtype=self.dtype, role=Role.WEIGHT)
        y = Tensor(name="attn_difference", elements=out.elements / 2.0, dtype=out.dtype)
        difference = elementwise(y.name, (whole(out), whole(lambdas)), y, tokens, flops=2.0)
        norm = Norm(
            name="attn_group_norm",
            kind=NormKind.RMS,
            width=2 * self.head_dim,
            rows=self.heads / 2,
            parameters=0,
            dtype=self.dtype,
        ).operator(y, tokens)
        return (difference, norm, *Attention._after(self, tokens, norm.output, before))


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicMaskAttention(Attention):
    """Attention whose scores have a bias that every key's cached values decide (Doge).

    In contexts over a given length it keeps only the keys of the largest bias; transformers computes all scores
    nonetheless, and so does this.
    """

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The usual operators; before the scores, one bias per key and key-value head from all cached values."""
        plain = Attention.operators(self, step, x)
        at = next(index for index, operator in enumerate(plain) if operator.name == "qk_matmul")
        shape = self.shape(step)
        keys, width = shape.keys(), self.kv_heads * (self.v_dim or self.head_dim)
        values = Tensor(name="v_cache", elements=keys * (1.0 * width), dtype=self.dtype, role=Role.CACHE)
        linear = Linear(
            name="mask_proj",
            in_features=width,
            out_features=self.kv_heads,
            dtype=self.dtype,
            bias=self.projections.qkv_bias,
        ).operator(values, keys)
        a = Tensor(name="A.weight", elements=float(self.kv_heads), dtype=self.dtype, role=Role.WEIGHT)
        y = Tensor(name="dynamic_mask", elements=linear.output.elements, dtype=x.dtype)
        reads = (whole(linear.output), whole(a))
        mask = elementwise(y.name, reads, y, keys, flops=GATE_FLOPS, special=GATE_SPECIAL)
        return (*plain[:at], linear, mask, *plain[at:])

    def shape(self, step: Step) -> AttentionShape:
        """One more sum per score."""
        plain = Attention.shape(self, step)
        return replace(plain, score_flops=plain.score_flops + MASK_FLOPS)
