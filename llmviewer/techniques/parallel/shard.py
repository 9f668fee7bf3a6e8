"""Tensor, sequence and expert parallelism: one device's share of every operator, and the collectives between devices.

Layouts follow from the data flow: a column-parallel layer has a whole input and a split output, a row-parallel layer a
split input and a partial sum; operators between them work on split tensors.  A partial sum is reduced before the first
operator that is not linear in it.  So only linear layers need a table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.ir import Access, Block, Operator, Pass, Role
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import GemmShape
from llmviewer.techniques.parallel.exchanges import Exchanges, is_expert
from llmviewer.techniques.parallel.sharding import (
    EMBEDDING_TABLES,
    KV_HEADS,
    SHARED_LATENTS,
    Layout,
    Sharding,
    Split,
    check_divisible,
    kv_head_share,
    linear_split,
    shared_residual_sums,
    split_experts,
)
from llmviewer.techniques.scaling import scale_access, scale_axis, scale_moved, scale_work


def shard(sharding: Sharding) -> Pass:
    """The graph of one device, with its collectives.

    Summed over a tensor group, matmul FLOPs and weight bytes are unchanged, except for replicated norms, routers,
    latent projections, KV heads beyond one per device, biases of row-parallel layers.  Each branch of a layer ends in
    one all-reduce (a parallel layer's two branches share one), the embedding in another, the head in an all-gather of
    the logits.  Not counted: the sum of squares that norms over all heads exchange, one number per token.
    Sources: Megatron-LM, arXiv 1909.08053; sequence parallelism arXiv 2205.05198.
    """
    if sharding.tensor == 1 and sharding.expert == 1:
        return lambda graph: graph
    return lambda graph: graph.map_blocks(lambda block: _BlockSharding(sharding=sharding).block(block))


@dataclass(slots=True, kw_only=True)
class _BlockSharding(Exchanges):
    """Traversal of the operators of one block.  kv_head_share: a device's share of its KV heads."""

    kv_head_share: float = 1.0

    def block(self, block: Block) -> Block:
        """The block of one device."""
        self.kv_head_share = kv_head_share(block, self.sharding.tensor)
        self.sums, self.tokens = shared_residual_sums(block), block.operators[0].output_shape[0]
        if self.sharding.sequence:
            self.layouts["hidden"] = Layout.TOKENS
        for operator in block.operators:
            self.done.append(self._device_part(self.prepared(operator)))
        self.close(block.operators[-1])
        states = tuple(replace(s, per_token=s.per_token * self._kept(s.name), per_sequence=s.per_sequence / self.n)
                       for s in block.states)  # fmt: skip
        return replace(block, operators=tuple(self.done), states=states)

    def _share(self, name: str) -> Count:
        """A device's share of a split tensor."""
        return self.rows[name] if name in self.rows else self._kept(name)

    def _kept(self, name: str) -> float:
        """A device's share of heads or channels."""
        if name in SHARED_LATENTS:
            return 1.0
        return self.kv_head_share if name in KV_HEADS else 1.0 / self.n

    def _device_part(self, operator: Operator) -> Operator:
        """One device's part; notes the layout of its outputs.  A tensor group of one splits only experts."""
        table, gemm = operator.name in EMBEDDING_TABLES, isinstance(operator.shape, GemmShape)
        if self.n == 1.0 and (table or (gemm and not is_expert(operator))):
            return self._untouched(operator)
        if table:
            return self._embedding(operator)
        return self._gemm(operator, operator.shape) if isinstance(operator.shape, GemmShape) else self._other(operator)

    def _embedding(self, operator: Operator) -> Operator:
        """The table is split by vocabulary; a device reads the rows of its share of the tokens."""
        self.set_outputs(operator, Layout.PARTIAL)
        table, *others = operator.reads
        return replace(operator, reads=(scale_access(table, 1.0 / self.n), *others))

    def _other(self, operator: Operator) -> Operator:
        """Operators without weights inherit the layout of their inputs."""
        if self.inputs_with(operator, Layout.PARTIAL):
            self.set_outputs(operator, Layout.PARTIAL)
            return replace(operator, reads=tuple(self._read(a, 1.0) for a in operator.reads))
        if self.inputs_with(operator, Layout.TOKENS):
            return self._by_tokens(operator)
        if not self.inputs_with(operator, Layout.SPLIT):
            return self._untouched(operator)
        return self._own_rows(operator) if operator.role is OperatorRole.EXPERT_COMBINE else self._inner(operator)

    def _untouched(self, operator: Operator) -> Operator:
        """The operator with whole outputs; a cache it reads is already split, so it reads a device's part of it."""
        self.set_outputs(operator, Layout.WHOLE)
        return operator

    def _gemm(self, operator: Operator, shape: GemmShape) -> Operator:
        if is_expert(operator) and self.sharding.expert > 1:
            self.set_outputs(operator, Layout.SPLIT)
            new, self.rows[operator.output.name] = split_experts(operator, shape, self.sharding, self.rows)
            return new
        split = linear_split(operator.name)
        if split is Split.REPLICATED:
            self.set_outputs(operator, Layout.PARTIAL if self.inputs_with(operator, Layout.PARTIAL) else Layout.WHOLE)
            return operator
        if split is Split.ROW_PARALLEL:
            check_divisible(operator.name, shape.k, self.n)
            self.set_outputs(operator, Layout.PARTIAL)
            reads = tuple(self._read(a, 1.0 if a.tensor.name.endswith(".bias") else 1.0 / self.n)
                          for a in operator.reads)  # fmt: skip
            return scale_work(operator, 1.0 / self.n).having(reads=reads, shape=replace(shape, k=shape.k / self.n))
        self.set_outputs(operator, Layout.SPLIT)
        share = self._share_of_heads(operator)
        writes = tuple(scale_access(a, self._kept(a.tensor.name)) for a in operator.writes)
        reads = tuple(self._read(a, share) for a in operator.reads)
        new = scale_axis(scale_work(operator, share), -1, share)
        return new.having(reads=reads, writes=writes, shape=replace(shape, n=shape.n * share))

    def _read(self, access: Access, weight_share: Count) -> Access:
        if access.tensor.role is Role.WEIGHT:
            return scale_access(access, weight_share)
        if access.tensor.role is Role.CACHE:
            return scale_access(access, self._share(access.tensor.name))
        layout = self.layout(access.tensor)
        if layout is Layout.TOKENS:
            return scale_access(access, self.token_share)
        return scale_access(access, self._share(access.tensor.name)) if layout is Layout.SPLIT else access

    def _share_of_heads(self, operator: Operator) -> float:
        """A device's share of the outputs; of different shares their mean, weighted by sizes.

        Sizes of such outputs have one ratio at all points: that of their heads.
        """
        shares = [self._kept(a.tensor.name) for a in operator.writes]
        if len(set(shares)) == 1:
            return shares[0]
        sizes = [np.ravel(a.elements)[-1] for a in operator.writes]
        ratios = np.array([float(size / max(sizes)) for size in sizes])
        return float(np.sum(ratios * np.array(shares)) / np.sum(ratios))

    def _inner(self, operator: Operator) -> Operator:
        """An operator between two linear layers: a device works on its heads or channels."""
        self.set_outputs(operator, Layout.SPLIT)
        self.layouts.update({a.tensor.name: Layout.WHOLE for a in operator.writes if a.tensor.name in SHARED_LATENTS})
        source = next((a.tensor.name for a in operator.reads if a.tensor.name in self.rows), None)
        if source:
            self.rows.update({a.tensor.name: self.rows[source] for a in operator.writes})
        share: Count = self.rows[source] if source else self._share_of_heads(operator)
        shape = operator.shape
        if isinstance(shape, AttentionShape):
            kv_heads = np.maximum(shape.kv_heads / self.n, 1.0)
            shape = replace(shape, heads=shape.heads / self.n, kv_heads=kv_heads)
        axis = 0 if source else 1 if len(operator.output_shape) > 2 else -1
        reads = tuple(self._read(a, self._weights(a, operator, share)) for a in operator.reads)
        writes = tuple(scale_access(a, self._share(a.tensor.name)) for a in operator.writes)
        return scale_axis(scale_work(operator, share), axis, share).having(reads=reads, writes=writes, shape=shape)

    def _weights(self, access: Access, operator: Operator, share: Count) -> Count:
        """A device's share of weights: all of a norm that is common to the heads, else that of the channels."""
        if operator.kind is not Kind.NORM or access.tensor.role is not Role.WEIGHT:
            return share
        return 1.0 if np.max(access.tensor.elements) < np.max(operator.output_shape[-1]) else share

    def _by_tokens(self, operator: Operator) -> Operator:
        """A device works on its own tokens; weights are replicated."""
        self.set_outputs(operator, Layout.TOKENS)
        share = self.token_share
        rows = operator.kind is Kind.EMBEDDING
        reads = tuple(
            a if a.tensor.role is Role.WEIGHT and not rows
            else scale_moved(a, share) if a.tensor.role is Role.WEIGHT else scale_access(a, share)
            for a in operator.reads
        )  # fmt: skip
        writes = tuple(scale_access(a, share) for a in operator.writes)
        return scale_axis(scale_work(operator, share), 0, share).having(reads=reads, writes=writes)

    def _own_rows(self, operator: Operator) -> Operator:
        """Each device sums the rows of its own experts: a partial sum for all tokens."""
        self.set_outputs(operator, Layout.PARTIAL)
        share = self.rows[operator.reads[0].tensor.name]
        return replace(scale_work(operator, share), reads=tuple(self._read(a, 1.0) for a in operator.reads))
