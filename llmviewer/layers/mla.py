"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): all heads share one cached latent."""

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
from llmviewer.layers.feed_forward import Moe
from llmviewer.ops.attention import AttentionInputs, AttentionShape, eager, rope
from llmviewer.ops.elementwise import activate, activation, gated, rms_norm
from llmviewer.ops.gemm import Linear


@frozen
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


@frozen
class GatedExperts:
    """Experts behind such a gate."""

    gate: InputGate
    sparse: Moe

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of the gate and of the experts."""
        before = self.gate.operators(step, x)
        return (*before, *self.sparse.operators(step, before[-1].output))


#: Roles of linear layers that graph passes select.
ROLES = {
    "q_proj": OperatorRole.QUERY,
    "kv_b_proj": OperatorRole.LATENT_EXPANSION,
    "o_proj": OperatorRole.ATTENTION_OUTPUT,
}


class MlaForm(Enum):
    """The form of latent attention: two computations with equal results, or the cheaper of them."""

    CHEAPER = "cheaper"  # the form with fewer matmul FLOP, per forward pass
    NAIVE = "naive"  # kv_b_proj expands the cached latent to keys and values of every head
    ABSORBED = "absorbed"  # kv_b_proj is applied to queries and outputs; attention runs in the latent


@frozen
class Mla:
    """A mixer that caches kv_rank + rope_dim elements per token.  q_rank: rank of the queries, 0 = one q_proj.

    selected: most keys that a query attends to, inf = all; `indexer` chooses them, or that of an earlier layer if None.
    window: tokens, inf = none.  gate_width: elements per head of a sigmoid gate on the output, 0 = none.
    gated_queries: the gate and the queries are one product, of the queries' latent before and after its norm (A.X K2).
    sinks: one learned score per head.  key_norm: the rotated key has a norm.  input_gate: changes the input first.
    rotates: whether the rope_dim elements are rotated; Kimi-Linear only copies the shared key to the cache.
    """

    hidden: int
    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    dtype: Dtype
    bias: bool = False
    selected: float = np.inf
    indexer: Indexer | None = None
    window: float = np.inf
    gate_width: int = 0
    sinks: bool = False
    key_norm: bool = False
    gated_queries: bool = False
    input_gate: InputGate | None = None
    rotates: bool = True
    form: MlaForm = MlaForm.CHEAPER

    def states(self) -> tuple[State, ...]:
        """The cache of one layer: the latent and the rotated key, shared by all heads; and the indexer's keys."""
        width = self.kv_rank + self.rope_dim
        latent = State(name="latent_cache", dtype=self.dtype, per_token=width, window=self.window)
        return (latent, *self.indexer.states()) if self.indexer else (latent,)

    def absorbed(self, step: Step) -> Count:
        """1.0 for forward passes in absorbed form, else 0.0.

        Matmul FLOP per layer, naive: 2 keys r H (nope + v) + 2 pairs H (nope + rope + v); absorbed:
        2 tokens r H (nope + v) + 2 pairs H (2 r + rope).  Where keys are left out by selection the form is absorbed:
        kernels gather latents of one head (FlashMLA), not expanded keys of all.
        """
        if self.form is not MlaForm.CHEAPER:
            return 0.0 * step.tokens + float(self.form is MlaForm.ABSORBED)
        plain = self._shape(step, 0.0 * step.tokens)
        keys, pairs = plain.keys(), plain.full_pairs()
        up = self.kv_rank * (self.nope_dim + self.v_dim)
        naive = keys * up + pairs * (self.nope_dim + self.rope_dim + self.v_dim)
        latent = step.tokens * up + pairs * (2.0 * self.kv_rank + self.rope_dim)
        chosen = plain.attended_pairs() < replace(plain, selected=np.inf).attended_pairs()
        return np.where(chosen | (latent < naive), 1.0, 0.0)

    def _shape(self, step: Step, absorbed: Count) -> AttentionShape:
        qk = np.where(absorbed, self.kv_rank, self.nope_dim) + self.rope_dim
        v = np.where(absorbed, self.kv_rank, self.v_dim)
        kv_heads = np.where(absorbed, 1.0, self.heads)
        return AttentionShape(
            groups=step.groups,
            heads=self.heads,
            kv_heads=kv_heads,
            qk_dim=qk,
            v_dim=v,
            window=self.window,
            selected=self.selected,
        )

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Down- and up-projections of queries, the latent, rope, kv_b_proj, attention, o_proj."""
        tokens, absorbed = step.tokens, self.absorbed(step)
        shape = self._shape(step, absorbed)
        first = self.input_gate.operators(step, x) if self.input_gate else ()
        x = first[-1].output if first else x
        queries = self._queries(tokens, x)
        index = self.indexer.operators(step, x, queries[-2].output) if self.indexer else ()
        latent = self._latent(tokens, x)
        rotate = self._rope(tokens, queries[-1].output, latent[-1] if self.key_norm else latent[0])
        expand = self._kv_b(shape, tokens, absorbed, rotate.output)
        core = eager(shape, self._inputs(shape, absorbed, rotate.output, expand))
        # in absorbed form kv_b_proj's value half is applied to the output; its work is counted in kv_b_proj
        out = Tensor(name="sv_matmul", elements=tokens * (1.0 * self.heads * self.v_dim), dtype=x.dtype)
        gate = self._gate(tokens, x, out, queries[-1].output)
        o_proj = self._linear("o_proj", self.heads * self.v_dim, self.hidden, bias=self.bias)
        project = o_proj.operator(gate[-1].output if gate else out, tokens)
        return (*first, *queries, *index, *latent, rotate, expand, *core, *gate, project)

    def _gate(self, tokens: Count, x: Tensor, out: Tensor, q: Tensor) -> tuple[Operator, ...]:
        """The output times the sigmoid of a projection of the input, one factor per head or per element."""
        y = Tensor(name="attn_gate", elements=out.elements, dtype=out.dtype)
        if self.gated_queries:
            read = Access(q, out.elements)
            return (gated("attn_gate", (read, whole(out)), y, tokens, activation("sigmoid")),)
        if not self.gate_width:
            return ()
        project = self._linear("output_gate", self.hidden, self.heads * self.gate_width).operator(x, tokens)
        scaled = gated("attn_gate", (whole(project.output), whole(out)), y, tokens, activation("sigmoid"))
        return project, scaled

    def _linear(self, name: str, width_in: int, width_out: int, *, bias: bool = False) -> Linear:
        role = ROLES.get(name, OperatorRole.OTHER)
        return Linear(name=name, in_features=width_in, out_features=width_out, dtype=self.dtype, bias=bias, role=role)

    def _queries(self, tokens: Count, x: Tensor) -> tuple[Operator, ...]:
        width = self.heads * (self.nope_dim + self.rope_dim)
        if not self.q_rank:
            return (self._linear("q_proj", self.hidden, width).operator(x, tokens),)
        down = self._linear("q_a_proj", self.hidden, self.q_rank, bias=self.bias).operator(x, tokens)
        norm = rms_norm("q_a_norm", self.q_rank, self.dtype).operator(down.output, tokens)
        if not self.gated_queries:
            return down, norm, self._linear("q_b_proj", self.q_rank, width).operator(norm.output, tokens)
        both = self._linear("q_b_proj", 2 * self.q_rank, width + self.heads * self.v_dim)
        product = both.operator(norm.output, tokens)
        return down, norm, replace(product, reads=(whole(down.output), *product.reads))

    def _latent(self, tokens: Count, x: Tensor) -> tuple[Operator, ...]:
        """kv_a_proj, and the norm that writes the latent to the cache."""
        width = self.kv_rank + self.rope_dim
        down = self._linear("kv_a_proj", self.hidden, width, bias=self.bias).operator(x, tokens)
        stored = whole(self._cache(tokens * (1.0 * self.kv_rank)))
        norm = rms_norm("kv_a_norm", self.kv_rank, self.dtype).operator(down.output, tokens, (stored,))
        if not self.key_norm:
            return down, norm
        return down, norm, rms_norm("k_rope_norm", self.rope_dim, self.dtype).operator(down.output, tokens)

    def _cache(self, elements: Count) -> Tensor:
        return Tensor(name="latent_cache", elements=elements, dtype=self.dtype, role=Role.CACHE)

    def _rope(self, tokens: Count, q: Tensor, latent: Operator) -> Operator:
        rotated = Tensor(name="rope", elements=q.elements, dtype=q.dtype)
        key = tokens * (1.0 * self.rope_dim)
        reads = (Access(q, tokens * (1.0 * self.heads * self.rope_dim)), Access(latent.output, key))
        writes = (Access(rotated, tokens * (1.0 * self.heads * self.rope_dim)), whole(self._cache(key)))
        rotated_heads = self.heads + 1 if self.rotates else 0
        return rope("rope", reads, writes, tokens, rotated_heads * self.rope_dim / 2)

    def _kv_b(self, shape: AttentionShape, tokens: Count, absorbed: Count, q: Tensor) -> Operator:
        """kv_b_proj: over all keys in naive form, over the new tokens in absorbed form.

        In absorbed form one half is applied to queries and one to outputs; together they are as much work as expanding
        the new tokens.
        Reads: the cached latent (r per key), or queries (nope per head) and latent outputs (r per head).
        Writes: keys and values (nope and v per head), or latent queries and outputs (r and v per head).
        """
        keys, per_token = shape.keys(), tokens * (1.0 * self.heads)
        latent = self._cache(keys * (1.0 * self.kv_rank))
        rows = np.where(absorbed, tokens, keys)
        first = _part("kv_b_keys", np.where(absorbed, per_token * self.kv_rank, keys * self.heads * self.nope_dim), q)
        second = _part("kv_b_values", rows * (1.0 * self.heads * self.v_dim), q)
        linear = self._linear("kv_b_proj", self.kv_rank, self.heads * (self.nope_dim + self.v_dim))
        operator = linear.operator(q, rows, (whole(first), whole(second)))
        on_latent = Access(latent, np.where(absorbed, 0.0, latent.elements))
        on_queries = Access(q, np.where(absorbed, per_token * (self.nope_dim + self.kv_rank), 0.0))
        return replace(operator, reads=(on_latent, on_queries, *operator.reads[1:]))

    def _inputs(self, shape: AttentionShape, absorbed: Count, q: Tensor, expand: Operator) -> AttentionInputs:
        """The inputs of attention: expanded keys and values and the cached rotated keys; or only the latent cache."""
        keys = shape.keys()
        latent = self._cache(keys * (1.0 * self.kv_rank + self.rope_dim))
        cached = Access(latent, keys * (np.where(absorbed, self.kv_rank, 0.0) + self.rope_dim))
        again = Access(latent, keys * np.where(absorbed, self.kv_rank, 0.0))
        expanded, values = (
            Access(write.tensor, np.where(absorbed, 0.0, write.tensor.elements)) for write in expand.writes
        )
        queries = _part(q.name, shape.queries() * (shape.heads * shape.qk_dim), q)
        sinks = Tensor(name="sinks.weight", elements=float(self.heads), dtype=self.dtype, role=Role.WEIGHT)
        extra = (whole(sinks),) if self.sinks else ()
        return AttentionInputs(q=queries, k=(cached, expanded), v=(again, values), extra=extra)


def _part(name: str, elements: Count, like: Tensor) -> Tensor:
    return Tensor(name=name, elements=elements, dtype=like.dtype)
