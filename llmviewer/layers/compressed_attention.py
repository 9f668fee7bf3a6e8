"""Attention of DeepSeek-V4: one key head that is also the value, a short window, and compressed entries before it.

Source: https://github.com/huggingface/transformers, models/deepseek_v4/modeling_deepseek_v4.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Access, Operator, Role, State, Tensor, whole
from llmviewer.core.kinds import OperatorRole
from llmviewer.core.workload import Step
from llmviewer.layers.compressor import Compressor
from llmviewer.layers.indexer import Indexer
from llmviewer.ops.attention import AttentionInputs, AttentionShape, eager, rope
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm, NormKind, rms_norm


@dataclass(frozen=True, slots=True, kw_only=True)
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
