"""Attention over few of the keys: DeepSeek's sparse attention, and DeepSeek-V4's compressed entries.

Sources: DeepSeek-V3.2-Exp, https://github.com/deepseek-ai/DeepSeek-V3.2-Exp, inference/model.py (class Indexer);
https://github.com/huggingface/transformers, models/deepseek_v4/modeling_deepseek_v4.py
"""

from __future__ import annotations

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Role, State, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Step
from llmviewer.ops.attention import SOFTMAX_FLOPS, AttentionInputs, AttentionShape, eager, rope
from llmviewer.ops.elementwise import Norm, NormKind, elementwise, rms_norm
from llmviewer.ops.gemm import Linear


@frozen
class Compressor:
    """Entries of `dim` elements.  overlap: an entry also covers the `rate` tokens before its own, with other weights.

    prefix: of the names of operators and caches (`compressed`, `index`).
    """

    hidden: int
    dim: int
    rate: int
    dtype: Dtype
    overlap: bool = False
    prefix: str = "compressed"

    @property
    def _width(self) -> int:
        return self.dim * (2 if self.overlap else 1)

    @property
    def cache_name(self) -> str:
        """Name of the cache of entries."""
        return f"{self.prefix}_cache"

    def states(self) -> tuple[State, ...]:
        """The entries, dim / rate elements per token; and projections of tokens that fill no entry yet, per sequence.

        With overlap the last whole group of tokens is kept as well.
        """
        kept = 2.0 * self.rate * (self._width + (self.dim if self.overlap else 0))
        return (
            State(name=self.cache_name, dtype=self.dtype, per_token=self.dim / self.rate),
            State(name=f"{self.prefix}_pending", dtype=self.dtype, per_sequence=kept),
        )

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Projections of values and gates, softmax over an entry's tokens, weighted sum, norm into the cache."""
        tokens = step.tokens
        value, gate = (self._linear(name).operator(x, tokens) for name in ("kv_proj", "gate_proj"))
        stored = float(self.rate * self._width)
        bias = Tensor(name=f"{self.prefix}_position.weight", elements=stored, dtype=self.dtype, role=Role.WEIGHT)
        entries = tokens / self.rate
        y = Tensor(name=f"{self.prefix}_pool", elements=entries * self.dim, dtype=x.dtype)
        per_entry = self._width * self.rate / self.dim * (SOFTMAX_FLOPS + 3.0)  # bias, product, sum
        reads = (whole(value.output), whole(gate.output), whole(bias))
        pool = elementwise(y.name, reads, y, tokens, flops=per_entry, special=self._width * self.rate / self.dim)
        norm = rms_norm(f"{self.prefix}_norm", self.dim, self.dtype)
        return value, gate, pool, norm.operator(y, entries, (whole(self.cached(y.elements)),))

    def cached(self, elements: Count) -> Tensor:
        """The cache of entries, or a part of it."""
        return Tensor(name=self.cache_name, elements=elements, dtype=self.dtype, role=Role.CACHE)

    def _linear(self, name: str) -> Linear:
        full = f"{self.prefix}_{name}"
        return Linear(name=full, in_features=self.hidden, out_features=self._width, dtype=self.dtype)


#: Name of the cache of index keys.
INDEX_CACHE = "index_cache"


@frozen
class Indexer:
    """`heads` index queries per token, made from `q_width` elements, against one cached key of `dim` elements.

    weighted: each head's score passes a ReLU and is weighted by a projection of the token; else heads select alone.
    compressor: makes keys of several tokens (DeepSeek-V4), whose scores are weighted on the vector units.
    q_norm: queries have a norm, and both norms are RMSNorms (MiniMax-M3); else keys have a LayerNorm.
    """

    hidden: int
    q_width: int
    heads: int
    dim: int
    rope_dim: int
    dtype: Dtype
    weighted: bool = True
    q_norm: bool = False
    compressor: Compressor | None = None

    def states(self) -> tuple[State, ...]:
        """The cache of index keys of one layer."""
        if self.compressor:
            return self.compressor.states()
        return (State(name=INDEX_CACHE, dtype=self.dtype, per_token=self.dim),)

    def operators(self, step: Step, x: Tensor, source: Tensor) -> tuple[Operator, ...]:
        """Projections, norms, rope that writes the key to its cache, and scores.  source: what queries are made of."""
        tokens = step.tokens
        q = self._linear("index_q_proj", self.q_width, self.heads * self.dim).operator(source, tokens)
        before: tuple[Operator, ...] = (q,)
        if self.q_norm:
            before += (self._norm("index_q_norm", self.heads).operator(q.output, tokens),)
        keys = self._keys(step, x)
        turn = self._rope(tokens, before[-1].output, keys[-1].output)
        if not self.weighted:
            return (*before, *keys, turn, self._scores(step, turn.output, ()))
        weights = self._linear("index_weights_proj", self.hidden, self.heads).operator(x, tokens)
        return (*before, *keys, turn, weights, self._scores(step, turn.output, (weights.output,)))

    def _keys(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Projection and norm of the keys, or the operators of the compressor, which writes them to the cache."""
        if self.compressor:
            return self.compressor.operators(step, x)
        project = self._linear("index_k_proj", self.hidden, self.dim).operator(x, step.tokens)
        return project, self._norm("index_k_norm", 1).operator(project.output, step.tokens)

    def _rope(self, tokens: Count, q: Tensor, k: Tensor) -> Operator:
        """The rotation of queries, and of keys into the cache; those of a compressor are there already."""
        rotated = Tensor(name="index_rope", elements=q.elements, dtype=q.dtype)
        reads: tuple[Access, ...] = (whole(q),)
        writes: tuple[Access, ...] = (whole(rotated),)
        if not self.compressor:
            reads, writes = (*reads, whole(k)), (*writes, whole(self._cache(tokens * (1.0 * self.dim))))
        return rope("index_rope", reads, writes, tokens, (self.heads + 1) * self.rope_dim / 2)

    def _scores(self, step: Step, q: Tensor, weights: tuple[Tensor, ...]) -> Operator:
        """All keys are scored: 2 pairs heads dim, and 2 pairs heads for the weighted sum over heads.

        Selection is not counted, as for experts.  A kernel that knows the causal mask computes attended pairs only.
        """
        pairs, attended, keys = self._pairs(step)
        on_matrices = self.weighted and not self.compressor
        per_pair = 2.0 * self.heads * (self.dim + float(on_matrices))
        cached = whole(self._cache(keys * self.dim))
        rows = pairs if self.weighted else pairs * self.heads
        y = Tensor(name="index_scores", elements=rows, dtype=q.dtype)
        return Operator(
            name=y.name,
            kind=Kind.ATTENTION,
            role=OperatorRole.INDEX_SCORES,
            compute=q.dtype.compute,
            reads=(whole(q), cached, *map(whole, weights)),
            writes=(whole(y),),
            output_shape=(step.tokens, rows / step.tokens),
            matmul_flops=pairs * per_pair,
            masked_flops=(pairs - attended) * per_pair,
            vector_flops=pairs * (self.heads * (1.0 if on_matrices or not self.weighted else 3.0)),
        )

    def _pairs(self, step: Step) -> tuple[Count, Count, Count]:
        """Pairs of queries and keys, those that the mask lets through, and keys in the cache."""
        if self.compressor:
            rate = self.compressor.rate
            all_pairs = sum(g.tokens * g.entries(rate) for g in step.groups)
            attended = sum(g.batch_size * g.entry_pairs(rate) for g in step.groups)
            return all_pairs, attended, sum(g.batch_size * g.entries(rate) for g in step.groups)
        shape = AttentionShape(groups=step.groups, heads=self.heads, kv_heads=1.0, qk_dim=self.dim, v_dim=0.0)
        return shape.full_pairs(), shape.attended_pairs(), shape.keys()

    def _linear(self, name: str, width_in: int, width_out: int) -> Linear:
        return Linear(name=name, in_features=width_in, out_features=width_out, dtype=self.dtype)

    def _norm(self, name: str, rows: int) -> Norm:
        kind, stored = (NormKind.RMS, self.dim) if self.q_norm else (NormKind.LAYER, 2 * self.dim)
        return Norm(name=name, kind=kind, width=self.dim, rows=rows, parameters=stored, dtype=self.dtype)

    def _cache(self, elements: Count) -> Tensor:
        return Tensor(name=INDEX_CACHE, elements=elements, dtype=self.dtype, role=Role.CACHE)


@frozen
class CompressedAttention:
    """Queries through a latent of q_rank; keys of head_dim elements, rotated in rope_dim of them, serve as values.

    compressor: makes entries of earlier tokens, None = only the window.  indexer: chooses `selected` entries per query.
    groups, o_rank: the output projection is two matrices, the first one separate for each group of heads.
    """

    hidden: int
    heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    groups: int
    o_rank: int
    window: float
    dtype: Dtype
    compressor: Compressor | None = None
    indexer: Indexer | None = None
    selected: float = np.inf

    def states(self) -> tuple[State, ...]:
        """The keys in the window, the compressed entries, and the indexer's entries."""
        own = State(name="latent_cache", dtype=self.dtype, per_token=self.head_dim, window=self.window)
        compressed = self.compressor.states() if self.compressor else ()
        return (own, *compressed, *(self.indexer.states() if self.indexer else ()))

    def shape(self, step: Step) -> AttentionShape:
        """The attention kernel of this step."""
        return AttentionShape(
            groups=step.groups,
            heads=self.heads,
            kv_heads=1.0,
            qk_dim=self.head_dim,
            v_dim=self.head_dim,
            window=self.window,
            compress=self.compressor.rate if self.compressor else 0.0,
            selected=self.selected,
        )

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Queries, keys, compressed entries, their selection, attention, reversed rope, output projections."""
        tokens, width = step.tokens, self.heads * self.head_dim
        down = self._linear("q_a_proj", self.hidden, self.q_rank).operator(x, tokens)
        latent = rms_norm("q_a_norm", self.q_rank, self.dtype).operator(down.output, tokens)
        up = self._linear("q_b_proj", self.q_rank, width).operator(latent.output, tokens)
        q_norm = self._head_norm().operator(up.output, tokens)
        key = self._linear("kv_proj", self.hidden, self.head_dim).operator(x, tokens)
        k_norm = rms_norm("kv_norm", self.head_dim, self.dtype).operator(key.output, tokens)
        turned = self._rope(tokens, q_norm.output, k_norm.output)
        entries = self.compressor.operators(step, x) if self.compressor else ()
        index = self.indexer.operators(step, x, latent.output) if self.indexer else ()
        core = eager(self.shape(step), self._inputs(step, turned.output))
        back = self._rope_back(tokens, core[-1].output)
        first = self._linear("o_a_proj", width // self.groups, self.groups * self.o_rank).operator(back.output, tokens)
        last = self._linear("o_proj", self.groups * self.o_rank, self.hidden).operator(first.output, tokens)
        return (down, latent, up, q_norm, key, k_norm, turned, *entries, *index, *core, back, first, last)

    def _linear(self, name: str, width_in: int, width_out: int) -> Linear:
        roles = {"o_proj": OperatorRole.ATTENTION_OUTPUT}
        role = roles.get(name, OperatorRole.OTHER)
        return Linear(name=name, in_features=width_in, out_features=width_out, dtype=self.dtype, role=role)

    def _head_norm(self) -> Norm:
        """The norm of queries per head, without weights."""
        return Norm(
            name="q_norm",
            kind=NormKind.RMS,
            width=self.head_dim,
            rows=self.heads,
            parameters=0,
            dtype=self.dtype,
            role=OperatorRole.QK_NORM,
        )

    def _rope(self, tokens: Count, q: Tensor, k: Tensor) -> Operator:
        rotated = Tensor(name="rope", elements=q.elements, dtype=q.dtype)
        reads, writes = (whole(q), whole(k)), (whole(rotated), whole(self._cache(k.elements)))
        return rope("rope", reads, writes, tokens, (self.heads + 1) * self.rope_dim / 2)

    def _rope_back(self, tokens: Count, out: Tensor) -> Operator:
        """The rotation of the output by the negative angle of its query, in place."""
        part = Access(out, tokens * (1.0 * self.heads * self.rope_dim))
        return rope("rope_back", (part,), (part,), tokens, self.heads * self.rope_dim / 2)

    def _cache(self, elements: Count) -> Tensor:
        return Tensor(name="latent_cache", elements=elements, dtype=self.dtype, role=Role.CACHE)

    def _inputs(self, step: Step, q: Tensor) -> AttentionInputs:
        """Queries, and the same cached tensors as keys and as values."""
        shape = self.shape(step)
        near = AttentionShape(
            groups=step.groups, heads=1.0, kv_heads=1.0, qk_dim=1.0, v_dim=1.0, window=self.window
        ).keys()
        cached = [whole(self._cache(near * self.head_dim))]
        if self.compressor:
            cached.append(whole(self.compressor.cached((shape.keys() - near) * self.head_dim)))
        sinks = Tensor(name="sinks.weight", elements=float(self.heads), dtype=self.dtype, role=Role.WEIGHT)
        return AttentionInputs(q=q, k=tuple(cached), v=tuple(cached), extra=(whole(sinks),))
