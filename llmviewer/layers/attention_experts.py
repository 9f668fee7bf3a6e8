"""Mixture of attention heads (JetMoE): experts make the queries and the output; keys and values are common.

Source: JetMoE, arXiv 2404.07413; Mixture of Attention Heads, arXiv 2210.05144
"""

from __future__ import annotations

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Role, State, Tensor, whole
from llmviewer.core.kinds import OperatorRole
from llmviewer.core.workload import Step
from llmviewer.layers.feed_forward import ROUTER_FLOPS, Moe, distinct_experts, weighted_sum
from llmviewer.ops.attention import AttentionInputs, AttentionShape, eager, rope
from llmviewer.ops.elementwise import elementwise
from llmviewer.ops.gemm import Linear


def added_bias(name: str, x: Tensor, tokens: Count, width: int, dtype: Dtype) -> Operator:
    """The sum of every row and a stored bias of `width` elements."""
    stored = Tensor(name=f"{name}.weight", elements=float(width), dtype=dtype, role=Role.WEIGHT)
    y = Tensor(name=name, elements=x.elements, dtype=x.dtype)
    return elementwise(name, (whole(x), whole(stored)), y, tokens, flops=1.0)


@frozen
class AttentionExperts:
    """`experts` pairs of query and output projections, of which each token uses `chosen`.

    Every chosen expert has one query head for each of the `kv_heads` keys.
    """

    hidden: int
    experts: int
    chosen: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    dtype: Dtype

    @property
    def _width(self) -> int:
        return self.kv_heads * self.head_dim

    def states(self) -> tuple[State, ...]:
        """The KV cache of one layer."""
        return tuple(State(name=name, dtype=self.dtype, per_token=self._width) for name in ("k_cache", "v_cache"))

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Router, queries of the chosen experts, keys and values, attention, output of the experts, their sum, bias."""
        tokens, rows = step.tokens, step.tokens * (1.0 * self.chosen)
        active = distinct_experts(self.experts, self.chosen, tokens)
        logits, scores = self._router(tokens, x)
        q = self._experts("expert_q_proj", self.hidden, self._width).operator(x, rows, active=active)
        width = tokens * (1.0 * self._width)
        k = Tensor(name="kv_proj", elements=width, dtype=x.dtype)
        kv = Linear(name="kv_proj", in_features=self.hidden, out_features=2 * self._width, dtype=self.dtype)
        project = kv.operator(x, tokens, (whole(k), whole(self._cache("v_cache", width))))
        turned = self._rope(tokens, q.output, k)
        core = eager(self._shape(step), self._inputs(step, turned.output))
        out = self._experts("expert_o_proj", self._width, self.hidden).operator(core[-1].output, rows, active=active)
        weights = Access(scores.output, rows)
        combine = weighted_sum(whole(out.output), weights, tokens, self.hidden, self.chosen)
        bias = added_bias("attn_bias", combine.output, tokens, self.hidden, self.dtype)
        return (logits, scores, q, project, turned, *core, out, combine, bias)

    def _experts(self, name: str, width_in: int, width_out: int) -> Linear:
        return Linear(name=name, in_features=width_in, out_features=width_out, dtype=self.dtype, experts=self.experts)

    def _router(self, tokens: Count, x: Tensor) -> tuple[Operator, Operator]:
        linear = Linear(
            name="attn_router",
            in_features=self.hidden,
            out_features=self.experts,
            dtype=self.dtype,
            role=OperatorRole.ROUTER,
        )
        logits = linear.operator(x, tokens)
        y = Tensor(name="attn_router_softmax", elements=logits.output.elements, dtype=x.dtype)
        return logits, elementwise(y.name, (whole(logits.output),), y, tokens, flops=ROUTER_FLOPS, special=1.0)

    def _shape(self, step: Step) -> AttentionShape:
        return AttentionShape(
            groups=step.groups,
            heads=self.kv_heads * self.chosen,
            kv_heads=self.kv_heads,
            qk_dim=self.head_dim,
            v_dim=self.head_dim,
        )

    def _rope(self, tokens: Count, q: Tensor, k: Tensor) -> Operator:
        rotated = Tensor(name="rope", elements=q.elements, dtype=q.dtype)
        writes = (whole(rotated), whole(self._cache("k_cache", k.elements)))
        heads = self.kv_heads * (self.chosen + 1)
        return rope("rope", (whole(q), whole(k)), writes, tokens, heads * self.rotary_dim / 2)

    def _cache(self, name: str, elements: Count) -> Tensor:
        return Tensor(name=name, elements=elements, dtype=self.dtype, role=Role.CACHE)

    def _inputs(self, step: Step, q: Tensor) -> AttentionInputs:
        elements = self._shape(step).keys() * self._width
        k, v = (whole(self._cache(name, elements)) for name in ("k_cache", "v_cache"))
        return AttentionInputs(q=q, k=(k,), v=(v,))


@frozen
class BiasedExperts:
    """Experts with a stored bias added to their sum (JetMoE)."""

    sparse: Moe

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of the experts and the bias."""
        sparse = self.sparse.operators(step, x)
        return (*sparse, added_bias("expert_sum_bias", sparse[-1].output, step.tokens, self.sparse.hidden, x.dtype))
