"""Attention over a KV cache: rope, the eager kernels and the flash kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Group

#: Tensors of eager attention with an element per score.
SCORE_TENSORS = ("qk_matmul", "softmax")
#: Per score: max, subtract, sum, divide, and one exponential, which also loads the special-function units.
SOFTMAX_FLOPS = 5.0
#: Per score of a soft cap: divide, tanh, multiply.
SOFT_CAP_FLOPS = 3.0
#: Per score of ALiBi (arXiv 2108.12409): one addition of a bias.
ALIBI_FLOPS = 1.0
#: Query rows of one thread block of flash kernels, by chip generation: {largest head_dim: rows}, widest first.
#: NVIDIA: FlashAttention,
#: https://github.com/Dao-AILab/flash-attention/blob/main/hopper/tile_size.h (tile_size_fwd_sm90 and _sm8x) and
#: https://github.com/Dao-AILab/flash-attention/blob/main/flash_attn/cute/flash_fwd_sm100.py (two tiles of 128);
#: AMD: composable_kernel,
#: https://github.com/facebookresearch/xformers/blob/main/xformers/csrc/attention/hip_fmha/ck_tiled_fmha_fwd_setting.h
ROW_BLOCKS: dict[str, dict[float, float]] = {
    "ampere": {np.inf: 128.0},
    "ampere-ga10x": {np.inf: 128.0},
    "ada": {np.inf: 128.0},
    "hopper": {np.inf: 128.0, 96.0: 192.0},
    "blackwell": {np.inf: 256.0},
    "blackwell-gb20x": {np.inf: 128.0},
    "cdna2": {np.inf: 128.0},
    "cdna3": {np.inf: 128.0},
    "cdna4": {np.inf: 128.0},
}


@frozen(eq=False)
class AttentionShape:
    """The dimensions of attention for all groups of a step.

    qk_dim, v_dim: elements of a query/key and of a value per head.  window: tokens that a query sees, inf = all.
    chunk: tokens of a chunk (Llama 4), 0 = none.  score_flops, score_special: vector work per score.
    used: share of the heads that is computed (contextual sparsity).  causal: False if every query sees all keys, as in
    encoders and vision towers.  compress: tokens of a compressed entry, which a query sees beside its window
    (DeepSeek-V4), 0 = none.  selected: most keys that a query attends to, chosen by an indexer, inf = all; with
    compress, most entries.
    """

    groups: tuple[Group, ...]
    heads: float
    kv_heads: Count
    qk_dim: Count
    v_dim: Count
    window: float = np.inf
    chunk: float = 0.0
    score_flops: float = SOFTMAX_FLOPS
    score_special: float = 1.0
    used: Count = 1.0
    causal: bool = True
    compress: float = 0.0
    selected: float = np.inf

    def queries(self) -> Count:
        """Query tokens of all sequences."""
        return self._sum(lambda g: g.tokens)

    def keys(self) -> Count:
        """Cached keys of all sequences, including those of this step."""
        return self._sum(lambda g: g.batch_size * (g.keys(self.window) + g.entries(self.compress)))

    def full_pairs(self) -> Count:
        """Query-key pairs that eager kernels compute, without regard to the mask."""
        return self._sum(lambda g: g.tokens * (g.keys(self.window) + g.entries(self.compress)))

    def attended_pairs(self) -> Count:
        """Query-key pairs that the mask lets through."""
        return self._sum(lambda g: g.batch_size * self.pairs_of(g))

    def pairs_of(self, group: Group) -> Count:
        """Query-key pairs of one sequence of `group` that the mask lets through."""
        if not self.causal:
            return group.new_tokens * self.keys_of(group)
        if self.compress:
            return group.attended_pairs(self.window) + group.entry_pairs(self.compress, self.selected)
        return group.chunked_pairs(self.chunk) if self.chunk else group.attended_pairs(min(self.window, self.selected))

    def keys_of(self, group: Group) -> Count:
        """Keys of one sequence that any query sees; a flash kernel reads only these."""
        if self.compress:
            entries = np.minimum(group.entries(self.compress), group.new_tokens * self.selected)
            return group.keys(self.window) + entries
        if self.selected < np.inf:  # each query may choose others
            return np.minimum(group.keys(self.window), group.new_tokens * self.selected)
        return group.chunked_keys(self.chunk) if self.chunk else group.keys(self.window)

    def visible(self, cached: tuple[Access, ...]) -> tuple[Access, ...]:
        """Accesses to the cache reduced to keys that any query sees (not earlier chunks or unselected keys)."""
        if not self.chunk and self.selected == np.inf:
            return cached
        keys, visible = self.keys(), self._sum(lambda g: g.batch_size * self.keys_of(g))
        return tuple(Access(access.tensor, access.elements / keys * visible) for access in cached)

    def _sum(self, count: Callable[[Group], Count]) -> Count:
        first, *others = self.groups
        total = count(first)
        for group in others:
            total = total + count(group)
        return total


@frozen(eq=False)
class AttentionInputs:
    """The inputs of attention: queries, keys, values (a latent cache may be both), and per-head extras (sinks)."""

    q: Tensor
    k: tuple[Access, ...]
    v: tuple[Access, ...]
    extra: tuple[Access, ...] = ()

    @staticmethod
    def from_eager(operators: tuple[Operator, Operator, Operator]) -> AttentionInputs:
        """The inputs of the three kernels that `eager` returns."""
        qk, softmax, sv = operators
        return AttentionInputs(q=qk.reads[0].tensor, k=qk.reads[1:], v=sv.reads[1:], extra=softmax.reads[1:])

    def cached(self) -> tuple[Access, ...]:
        """Accesses to keys and values; a tensor that serves as both counts once."""
        names = {access.tensor.name for access in self.k}
        return (*self.k, *(access for access in self.v if access.tensor.name not in names))


def rope(name: str, reads: tuple[Access, ...], writes: tuple[Access, ...], tokens: Count, pairs: float) -> Operator:
    """Rotation of `pairs` pairs per token, 4 multiplications and 2 additions each (RoFormer, arXiv 2104.09864)."""
    return Operator(
        name=name,
        kind=Kind.ELEMENTWISE,
        role=OperatorRole.ROPE,
        reads=reads,
        writes=writes,
        output_shape=(tokens, pairs * 2.0),
        vector_flops=tokens * (6.0 * pairs),
    )


def eager(shape: AttentionShape, inputs: AttentionInputs) -> tuple[Operator, ...]:
    """softmax(Q K^T) V as three kernels that move the full score matrix: 2 heads pairs (qk_dim + v_dim) FLOP."""
    pairs, attended, queries = shape.full_pairs(), shape.attended_pairs(), shape.queries()
    masked = pairs - attended
    scores = pairs * shape.heads
    keys = scores / (queries * shape.heads)
    act: Dtype = inputs.q.dtype
    score = Tensor(name="qk_matmul", elements=scores, dtype=act)
    prob = Tensor(name="softmax", elements=scores, dtype=act)
    out = Tensor(name="sv_matmul", elements=queries * (shape.heads * shape.v_dim), dtype=act)
    qk_pair, sv_pair = 2.0 * shape.heads * shape.qk_dim, 2.0 * shape.heads * shape.v_dim
    return (
        Operator(
            name="qk_matmul", kind=Kind.ATTENTION, role=OperatorRole.SCORES, compute=act.compute, shape=shape,
            reads=(whole(inputs.q), *inputs.k), writes=(whole(score),),
            output_shape=(queries, shape.heads, keys),
            matmul_flops=pairs * qk_pair, masked_flops=masked * qk_pair,
        ),
        Operator(
            name="softmax", kind=Kind.SOFTMAX, role=OperatorRole.SOFTMAX, shape=shape,
            reads=(whole(score), *inputs.extra), writes=(whole(prob),), output_shape=(queries, shape.heads, keys),
            vector_flops=scores * shape.score_flops, special_ops=scores * shape.score_special,
        ),
        Operator(
            name="sv_matmul", kind=Kind.ATTENTION, role=OperatorRole.WEIGHTED_VALUES, compute=act.compute, shape=shape,
            reads=(whole(prob), *inputs.v), writes=(whole(out),),
            output_shape=(queries, shape.heads * shape.v_dim),
            matmul_flops=pairs * sv_pair, masked_flops=masked * sv_pair,
        ),
    )  # fmt: skip


def flash(shape: AttentionShape, inputs: AttentionInputs, rereads: tuple[Access, ...], compute: str) -> Operator:
    """One kernel over the attended pairs: scores stay on the chip, Q is read once and O is written once.

    rereads: repeated reads of K and V for further row blocks, from the L2 or from device memory.
    compute: the dtype class of the products.
    Source: FlashAttention-2, arXiv 2307.08691.
    """
    pairs, queries = shape.attended_pairs() * shape.used, shape.queries()
    act = inputs.q.dtype
    out = Tensor(name="attention", elements=queries * (shape.heads * shape.v_dim), dtype=act)
    return Operator(
        name="attention", kind=Kind.ATTENTION, role=OperatorRole.ATTENTION, compute=compute, shape=shape,
        reads=(whole(inputs.q), *shape.visible(inputs.cached()), *inputs.extra, *rereads), writes=(whole(out),),
        output_shape=(queries, shape.heads * shape.v_dim),
        matmul_flops=pairs * (2.0 * shape.heads * (shape.qk_dim + shape.v_dim)),
        vector_flops=pairs * (shape.heads * shape.score_flops),
        special_ops=pairs * (shape.heads * shape.score_special),
    )  # fmt: skip


def block_rows(head_dim: Count, generation: str) -> Count:
    """Query rows per thread block of the flash kernel for `head_dim`."""
    rows: Count = 0.0
    for largest, count in ROW_BLOCKS[generation].items():  # the widest heads first
        rows = np.where(head_dim <= largest, count, rows)
    return rows
