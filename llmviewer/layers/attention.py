"""Softmax attention with grouped keys and values: MHA, MQA, GQA, windows, chunks, QK-norm, gates, sinks, soft caps."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Role, State, Tensor, whole
from llmviewer.core.kinds import OperatorRole
from llmviewer.core.workload import Step
from llmviewer.layers.compressed_attention import Indexer
from llmviewer.ops.attention import (
    ALIBI_FLOPS,
    SOFT_CAP_FLOPS,
    SOFTMAX_FLOPS,
    AttentionInputs,
    AttentionShape,
    eager,
    rope,
)
from llmviewer.ops.elementwise import Norm, NormKind, activation, gated, rms_norm
from llmviewer.ops.gemm import Linear

#: Per element of a clamped projection: minimum and maximum.
CLIP_FLOPS = 2.0


class QkNorm(Enum):
    """Normalisation of queries and keys, before or after rope."""

    NONE = "none"
    PER_HEAD = "per head"  # one weight of head_dim for all heads
    EACH_HEAD = "each head"  # one weight of head_dim for each head
    WHOLE = "whole"  # one norm over all heads together
    WEIGHTLESS = "weightless"  # per head, no weights


class Values(Enum):
    """The source of values."""

    PROJECTED = "projected"  # v_proj
    NORMED = "normed"  # v_proj and a norm per head without weights (Gemma 4)
    KEYS = "keys"  # the output of k_proj, and the same norm (larger models of Gemma 4)


@frozen
class Projections:
    """The projection matrices: q, k, v fused or separate; biases.  clip: q, k, v are clamped to a range.

    key_bias: False if of q, k, v only the keys have no bias (Whisper).
    """

    fused: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    clip: bool = False
    key_bias: bool = True


@frozen
class Attention:
    """Softmax attention with `heads` query heads and `kv_heads` key-value heads.

    rotary_dim: rotated elements per head, 0 = no rope.  window, chunk: tokens, inf and 0 = none.
    soft_cap: scores are capped by a tanh.  alibi: scores have a bias.  sinks: one learned score per head.
    gate: the output is multiplied by the sigmoid (`gate_activation`) of a second query projection (Qwen3-Next), of
    gate_width elements per head, 0 = head_dim.
    selected: most keys that a query attends to, inf = all, chosen by `indexer` from the layer's input.
    shares_cache: keys and values come from an earlier layer.  values: projected separately, or made from the keys.
    out_norm: an RMSNorm before the output projection (BitNet).
    q_rank: queries pass a latent of this width with a norm (Step-3), 0 = none.
    input_width: width of the input if it is not the residual stream (a draft head), 0 = hidden.
    causal: False in encoders, where every token sees all tokens and nothing is cached.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: Dtype
    v_dim: int = 0
    rotary_dim: int = 0
    projections: Projections = Projections()
    qk_norm: QkNorm = QkNorm.NONE
    values: Values = Values.PROJECTED
    norm_kind: NormKind = NormKind.RMS
    window: float = np.inf
    chunk: int = 0
    soft_cap: bool = False
    alibi: bool = False
    sinks: bool = False
    gate: bool = False
    gate_width: int = 0
    gate_activation: str = "sigmoid"
    selected: float = np.inf
    indexer: Indexer | None = None
    shares_cache: bool = False
    out_norm: bool = False
    q_rank: int = 0
    input_width: int = 0
    causal: bool = True

    @property
    def _widths(self) -> tuple[int, int, int]:
        """Elements per token of queries, keys, values."""
        return (
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
            self.kv_heads * (self.v_dim or self.head_dim),
        )

    @property
    def _gate_elements(self) -> int:
        return self.heads * (self.gate_width or self.head_dim) if self.gate else 0

    def states(self) -> tuple[State, ...]:
        """The KV cache of one layer."""
        if self.shares_cache or not self.causal:
            return ()
        _, k, v = self._widths
        window = min(self.window, self.chunk or np.inf)
        keys = State(name="k_cache", dtype=self.dtype, per_token=k, window=window)
        values = State(name="v_cache", dtype=self.dtype, per_token=v, window=window)
        return (keys, values, *self.indexer.states()) if self.indexer else (keys, values)

    def shape(self, step: Step) -> AttentionShape:
        """The attention kernel of this step."""
        return AttentionShape(
            groups=step.groups,
            heads=self.heads,
            kv_heads=self.kv_heads,
            qk_dim=self.head_dim,
            v_dim=self.v_dim or self.head_dim,
            window=min(self.window, self.chunk or np.inf),
            chunk=self.chunk,
            selected=self.selected,
            score_flops=SOFTMAX_FLOPS + SOFT_CAP_FLOPS * self.soft_cap + ALIBI_FLOPS * self.alibi,
            score_special=2.0 if self.soft_cap else 1.0,
            causal=self.causal,
        )

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Projections, QK-norm, rope (which writes K to the cache), eager attention, gate, output projection."""
        before, q = self._queries_and_cache(step.tokens, x)
        shape = self.shape(step)
        keys = shape.keys()
        _, k_width, v_width = self._widths
        k = self._cached("k_cache", keys * k_width)
        v = self._cached("v_cache", keys * v_width)
        sinks = Tensor(name="sinks.weight", elements=float(self.heads), dtype=self.dtype, role=Role.WEIGHT)
        inputs = AttentionInputs(q=q, k=(whole(k),), v=(whole(v),), extra=(whole(sinks),) if self.sinks else ())
        core = eager(shape, inputs)
        index = self.indexer.operators(step, x, x) if self.indexer else ()
        return (*before, *index, *core, *self._after(step.tokens, core[-1].output, before))

    def _after(self, tokens: Count, out: Tensor, before: tuple[Operator, ...]) -> tuple[Operator, ...]:
        width = self.heads * (self.v_dim or self.head_dim)
        project = Linear(
            name="o_proj",
            in_features=width,
            out_features=self.hidden,
            dtype=self.dtype,
            bias=self.projections.out_bias,
            role=OperatorRole.ATTENTION_OUTPUT,
        )
        if self.out_norm:
            norm = rms_norm("attn_out_norm", width, self.dtype).operator(out, tokens)
            return (norm, project.operator(norm.output, tokens))
        if not self.gate:
            return (project.operator(out, tokens),)
        source = before[0].output
        y = Tensor(name="attn_gate", elements=out.elements, dtype=out.dtype)
        read = Access(source, tokens * (1.0 * self._gate_elements))
        gate = gated("attn_gate", (whole(out), read), y, tokens, activation(self.gate_activation))
        return (gate, project.operator(y, tokens))

    def _queries_and_cache(self, tokens: Count, x: Tensor) -> tuple[tuple[Operator, ...], Tensor]:
        """The operators that make the rotated queries and fill the cache, and the queries."""
        operators, q, k = self._project(tokens, x)
        if self.qk_norm is not QkNorm.NONE:
            norms = self._norms(tokens, q, k)
            operators += norms
            q = norms[0].output
            k = k and norms[-1].writes[0]
        if self.values is not Values.PROJECTED and not self.shares_cache:
            operators += (self._value_norm(tokens, x),)
        if self.rotary_dim:
            operators += (self._rope(tokens, q, k),)
            q = operators[-1].output
        return operators, q

    def _cache_write(self, name: str, tokens: Count, width: int) -> Access:
        return whole(self._cached(name, tokens * (1.0 * width)))

    def _cached(self, name: str, elements: Count) -> Tensor:
        """Keys or values in the cache; without a causal mask they are activations of this pass."""
        if not self.causal:
            return Tensor(name=name.replace("_cache", "_proj"), elements=elements, dtype=self.dtype)
        return Tensor(name=name, elements=elements, dtype=self.dtype, role=Role.CACHE)

    def _project(self, tokens: Count, x: Tensor) -> tuple[tuple[Operator, ...], Tensor, Access | None]:
        """The operators that make q, k and v, and their q and k; k is in the cache if no norm or rope follows."""
        q_width, k_width, v_width = self._widths
        q_out = q_width + self._gate_elements
        k_is_final = not self.rotary_dim and self.qk_norm is QkNorm.NONE
        k = self._cache_write("k_cache", tokens, k_width)
        if not k_is_final:
            k = whole(Tensor(name="k_proj", elements=tokens * (1.0 * k_width), dtype=x.dtype))
        v = self._cache_write("v_cache", tokens, v_width)
        if self.projections.fused:
            q = whole(Tensor(name="qkv_proj", elements=tokens * (1.0 * q_out), dtype=x.dtype))
            fused = self._product("qkv_proj", q_out + k_width + v_width, x, tokens, (q, k, v))
            operators: tuple[Operator, ...] = (fused,)
            q_tensor = fused.output
        else:
            operators = self._queries(q_out, x, tokens)
            q_tensor = operators[-1].output
            if not self.shares_cache:
                operators += (self._product("k_proj", k_width, x, tokens, (k,)),)
            if not self.shares_cache and self.values is not Values.KEYS:
                written = (v,) if self.values is Values.PROJECTED else ()
                operators += (self._product("v_proj", v_width, x, tokens, written),)
        return operators, replace(q_tensor, elements=tokens * (1.0 * q_width)), None if self.shares_cache else k

    def _queries(self, width: int, x: Tensor, tokens: Count) -> tuple[Operator, ...]:
        """The product that makes the queries, or two with a norm between them."""
        if not self.q_rank:
            return (self._product("q_proj", width, x, tokens),)
        into = Linear(name="q_a_proj", in_features=self.hidden, out_features=self.q_rank, dtype=self.dtype)
        down = into.operator(x, tokens)
        norm = rms_norm("q_a_norm", self.q_rank, self.dtype).operator(down.output, tokens)
        up = Linear(
            name="q_b_proj",
            in_features=self.q_rank,
            out_features=width,
            dtype=self.dtype,
            role=OperatorRole.QUERY,
        )
        return down, norm, up.operator(norm.output, tokens)

    def _product(self, name: str, width: int, x: Tensor, tokens: Count, writes: tuple[Access, ...] = ()) -> Operator:
        bias = self.projections.qkv_bias and (self.projections.key_bias or name != "k_proj")
        clip = CLIP_FLOPS * self.projections.clip
        linear = Linear(
            name=name,
            in_features=self.input_width or self.hidden,
            out_features=width,
            dtype=self.dtype,
            bias=bias,
            role=OperatorRole.QUERY if name in ("q_proj", "qkv_proj") else OperatorRole.OTHER,
        )
        operator = linear.operator(x, tokens, writes)
        return replace(operator, vector_flops=operator.vector_flops + tokens * (clip * width)) if clip else operator

    def _norms(self, tokens: Count, q: Tensor, k: Access | None) -> tuple[Operator, ...]:
        """QK-norm, which writes keys to the cache if no rope follows."""
        q_norm = self._norm("q_norm", self.heads).operator(q, tokens)
        if k is None:
            return (q_norm,)
        writes = () if self.rotary_dim else (self._cache_write("k_cache", tokens, self._widths[1]),)
        return (q_norm, self._norm("k_norm", self.kv_heads).operator(k.tensor, tokens, writes))

    def _value_norm(self, tokens: Count, x: Tensor) -> Operator:
        """The norm of values, which writes them to the cache."""
        source = "k_proj" if self.values is Values.KEYS else "v_proj"
        width = self.v_dim or self.head_dim
        norm = Norm(name="v_norm", kind=NormKind.RMS, width=width, rows=self.kv_heads, parameters=0, dtype=self.dtype)
        values = self._cache_write("v_cache", tokens, self._widths[2])
        projected = Tensor(name=source, elements=values.elements, dtype=x.dtype)
        return norm.operator(projected, tokens, (values,))

    def _norm(self, name: str, heads: int) -> Norm:
        width, rows = (self.head_dim * heads, 1) if self.qk_norm is QkNorm.WHOLE else (self.head_dim, heads)
        stored = {QkNorm.WEIGHTLESS: 0, QkNorm.EACH_HEAD: self.head_dim * heads}.get(self.qk_norm, width)
        if self.norm_kind is NormKind.LAYER and self.qk_norm is QkNorm.PER_HEAD:
            stored *= 2
        return Norm(
            name=name,
            kind=self.norm_kind,
            width=width,
            rows=rows,
            parameters=stored,
            dtype=self.dtype,
            role=OperatorRole.QK_NORM,
        )

    def _rope(self, tokens: Count, q: Tensor, k: Access | None) -> Operator:
        rotated = Tensor(name="rope", elements=q.elements, dtype=q.dtype)
        heads = self.heads + (self.kv_heads if k else 0)
        reads: tuple[Access, ...] = (whole(q),)
        writes: tuple[Access, ...] = (whole(rotated),)
        if k:
            reads, writes = (*reads, k), (*writes, self._cache_write("k_cache", tokens, self._widths[1]))
        return rope("rope", reads, writes, tokens, heads * self.rotary_dim / 2)
