"""The lightning indexer of DeepSeek sparse attention: small heads score all keys, and attention reads the best ones.

Source: DeepSeek-V3.2-Exp, https://github.com/deepseek-ai/DeepSeek-V3.2-Exp, inference/model.py (class Indexer)
"""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Access, Operator, Role, State, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Step
from llmviewer.layers.compressor import Compressor
from llmviewer.ops.attention import AttentionShape, rope
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm, NormKind

#: Name of the cache of index keys.
INDEX_CACHE = "index_cache"


@dataclass(frozen=True, slots=True, kw_only=True)
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
