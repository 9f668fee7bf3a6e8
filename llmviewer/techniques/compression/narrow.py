"""Fewer heads or feed-forward channels: what lies between two linear layers becomes narrower, and so do they.

The first linear layers (`starts`) make fewer outputs, the last ones (`ends`) take fewer inputs, and every operator that
reads something narrow in between does less.  So only the linear layers stand in a table; factors of a linear layer
(`_low_a`, `_lora_b` ...) follow it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import floor

from llmviewer.core.counts import Count, total
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Operator, Pass, Role
from llmviewer.core.kinds import Kind
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import GemmShape

#: Endings of the factors that a technique sets in the place of a linear layer or beside it.
INTO = ("", "_low_b", "_lora_b")
OUT_OF = ("", "_low_a", "_lora_a")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """`new` of `old` channels (or heads) stay between linear layers `starts` and `ends`.

    narrow: tensors that exist before the block runs (caches).  kept: what stays whole though narrow things are read.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    old: float
    new: float
    narrow: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def part(self, count: Count) -> Count:
        """The share of a count that stays; whole numbers stay whole."""
        return count / self.old * self.new


def narrowed(block: Block, cut: Cut) -> Block:
    """The block with fewer channels between the linear layers of `cut`.

    matmul FLOPs and weights of those layers scale with new/old; biases of the ends do not.  Weights of norms scale
    where they span all channels, not where each head shares one vector.
    """
    if cut.old == cut.new:
        return block
    walk = _BlockNarrowing(cut=cut, narrow=set(cut.narrow))
    operators = tuple(walk.operator(op) for op in block.operators)
    states = tuple(
        replace(s, per_token=float(cut.part(s.per_token))) if s.name in cut.narrow else s for s in block.states
    )
    return replace(block, operators=operators, states=states)


@dataclass(slots=True, kw_only=True)
class _BlockNarrowing:
    """One block from its first operator to its last; narrow: names of the tensors met that are."""

    cut: Cut
    narrow: set[str] = field(default_factory=set)
    starts: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.starts = frozenset(name + ending for name in self.cut.starts for ending in INTO)
        self.ends = frozenset(name + ending for name in self.cut.ends for ending in OUT_OF)

    def operator(self, operator: Operator) -> Operator:
        if operator.name in self.ends:
            return self._end(operator)
        if operator.name in self.starts or any(self._is_narrow(a) for a in operator.reads):
            return self._inner(operator)
        return operator

    def _is_narrow(self, access: Access) -> bool:
        return access.tensor.role is not Role.WEIGHT and access.tensor.name in self.narrow

    def _scaled(self, access: Access) -> Access:
        tensor = replace(access.tensor, elements=self.cut.part(access.tensor.elements))
        return Access(tensor, self.cut.part(access.elements))

    def _inner(self, operator: Operator) -> Operator:
        """All it writes is narrow, and its work in proportion; what it reads is where it was so before."""
        cut, linear = self.cut, isinstance(operator.shape, GemmShape)
        self.narrow.update(a.tensor.name for a in operator.writes if a.tensor.name not in cut.kept)
        writes = tuple(self._scaled(a) if a.tensor.name not in cut.kept else a for a in operator.writes)
        reads = tuple(
            self._scaled(a) if self._is_narrow(a) or self._weight_scales(operator, a, linear) else a
            for a in operator.reads
        )
        whole = all(a.tensor.name not in cut.kept for a in operator.writes)
        before, after = (total(a.elements for a in accesses) for accesses in (operator.writes, writes))

        def part(count: Count) -> Count:
            return cut.part(count) if whole else count * (after / before)

        rows, width, *rest = operator.output_shape
        shape, output_shape = self._shape(operator.shape), (rows, part(width), *rest)
        changed = replace(operator, reads=reads, writes=writes, shape=shape, output_shape=output_shape)
        return changed.map_work(part)

    def _weight_scales(self, operator: Operator, access: Access, linear: bool) -> bool:  # noqa: FBT001
        if access.tensor.role is not Role.WEIGHT:
            return False
        return linear or operator.kind is not Kind.NORM or access.elements % operator.output_shape[1] == 0

    def _shape(self, shape: object) -> object:
        if isinstance(shape, GemmShape):
            return replace(shape, n=float(self.cut.part(shape.n)))
        if isinstance(shape, AttentionShape):
            # a cached latent serves all heads: one KV head in the weight-absorbed form, as many as queries otherwise
            one = (shape.kv_heads == 1) & (shape.heads > 1)
            kv_heads = self.cut.part(shape.kv_heads)
            return replace(shape, heads=float(self.cut.part(shape.heads)), kv_heads=kv_heads * (1 - one) + 1.0 * one)
        return shape

    def _end(self, operator: Operator) -> Operator:
        """Takes fewer inputs and makes as many outputs."""
        shape = operator.shape
        assert isinstance(shape, GemmShape)
        bias = any(a.tensor.name.endswith(".bias") for a in operator.reads)
        added = shape.m * (1.0 * shape.n) if bias else 0.0
        reads = tuple(
            a if a.tensor.name.endswith(".bias") or not (a.tensor.role is Role.WEIGHT or self._is_narrow(a))
            else self._scaled(a)
            for a in operator.reads
        )  # fmt: skip
        changed = replace(operator, reads=reads, shape=replace(shape, k=float(self.cut.part(shape.k))))
        return replace(
            changed,
            matmul_flops=self.cut.part(operator.matmul_flops),
            vector_flops=self.cut.part(operator.vector_flops - added) + added,
        )


def nearest_size(old: float, share: float) -> float:
    """The whole number nearest to old x share, halves upward, at least 1."""
    return max(1.0, floor(old * share + 0.5))


def narrower_feed_forward(share: float) -> Pass:
    """`share` of the intermediate channels of every feed-forward part, of each expert and of shared ones, to a whole
    number of channels."""

    def change(block: Block) -> Block:
        for prefix in ("", "shared_", "expert_"):
            for operator in block.operators:
                if operator.name == f"{prefix}down_proj":
                    shape = operator.shape
                    assert isinstance(shape, GemmShape)
                    starts = tuple(f"{prefix}{name}" for name in ("gate_proj", "up_proj", "gate_up_proj"))
                    cut = Cut(starts=starts, ends=(operator.name,), old=shape.k, new=nearest_size(shape.k, share))
                    block = narrowed(block, cut)
        return block

    return lambda graph: graph.map_blocks(change)


def fewer_heads(share: float) -> Pass:
    """`share` of the heads of softmax attention: groups of a KV head and its query heads stay or go together, so
    KV heads are rounded to a whole number; of latent attention, whose heads share one latent, query heads.

    Raises UserError where there is one KV head for all: no group can go.
    """
    return lambda graph: graph.map_blocks(lambda block: _with_heads(block, share))


def _with_heads(block: Block, share: float) -> Block:
    shape = next((op.shape for op in block.operators if isinstance(op.shape, AttentionShape)), None)
    if shape is None or not block.is_layer:
        return block
    if any(a.tensor.name == "latent_cache" for op in block.operators for a in op.reads):
        old, caches = shape.heads, tuple[str, ...]()
    else:
        old, caches = float(shape.kv_heads), ("k_cache", "v_cache")
        if old == 1.0 and shape.heads > 1 and share != 1.0:
            raise UserError("fewer heads: one KV head serves all query heads here; no group of heads can go")
    cut = Cut(
        starts=("q_proj", "k_proj", "v_proj", "qkv_proj", "q_b_proj", "kv_b_proj"),
        ends=("o_proj",),
        old=old,
        new=nearest_size(old, share),
        narrow=caches,
        kept=("latent_cache",),
    )
    return narrowed(block, cut)
