"""Tensor, sequence and expert parallelism: one device's share of every operator, and the collectives between devices.

Where a tensor lies follows from the data flow.  A linear layer split by columns turns a whole input into a split
output; one split by rows turns a split input into a partial sum; everything between works on the split.  A partial sum
is reduced before the first operator that is not linear in it.  So only linear layers stand in a table.
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
from llmviewer.techniques.parallel.experts import split_experts
from llmviewer.techniques.parallel.sharding import KV_HEADS, SHARED_LATENTS, EMBEDDING_TABLES, Layout, Sharding, Split, linear_split, check_divisible, kv_head_share, shared_residual_sums
from llmviewer.techniques.parallel.share import scale_access, scale_axis, scale_work


def shard(sharding: Sharding) -> Pass:
    """The graph of one device, with its collectives.

    Kept over all devices of a tensor group: matmul FLOPs and weight bytes, but for what is replicated: norms, routers,
    latent projections, KV heads beyond one per device, biases of layers split by rows.  Each branch of a layer ends in
    one all-reduce (a parallel layer's two branches share one), the embedding in another, the head in an all-gather of
    the logits.  The sum of squares that norms over all heads exchange, one number per token, is left out.
    Sources: Megatron-LM, arXiv 1909.08053; sequence parallelism arXiv 2205.05198.
    """
    if sharding.tensor == 1 and sharding.expert == 1:
        return lambda graph: graph
    return lambda graph: graph.map_blocks(lambda block: _BlockSharding(sharding=sharding).block(block))


@dataclass(slots=True, kw_only=True)
class _BlockSharding(Exchanges):
    """One block from its first operator to its last.  kv_head_share: a device's share of its KV heads."""

    kv_head_share: float = 1.0

    def block(self, block: Block) -> Block:
        """The block of one device."""
        self.kv_head_share = kv_head_share(block, self.sharding.tensor)
        self.sums, self.tokens = shared_residual_sums(block), block.operators[0].output_shape[0]
        if self.sharding.sequence:
            self.lies["hidden"] = Layout.TOKENS
        for operator in block.operators:
            self.done.append(self._shared(self.ready(operator)))
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

    def _shared(self, operator: Operator) -> Operator:
        """One device's part; notes how its outputs lie.  A group of one shares nothing but experts."""
        table, gemm = operator.name in EMBEDDING_TABLES, isinstance(operator.shape, GemmShape)
        if self.n == 1.0 and (table or (gemm and not is_expert(operator))):
            return self._untouched(operator)
        if table:
            return self._embedding(operator)
        return self._gemm(operator, operator.shape) if isinstance(operator.shape, GemmShape) else self._other(operator)

    def _embedding(self, operator: Operator) -> Operator:
        """Rows of the vocabulary are dealt out; a device finds its share of the tokens' rows."""
        self.note(operator, Layout.PARTIAL)
        table, *others = operator.reads
        return replace(operator, reads=(scale_access(table, 1.0 / self.n), *others))

    def _other(self, operator: Operator) -> Operator:
        """Whatever multiplies by no weights takes the lie of what it reads."""
        if self.lying(operator, Layout.PARTIAL):
            self.note(operator, Layout.PARTIAL)
            return replace(operator, reads=tuple(self._read(a, 1.0) for a in operator.reads))
        if self.lying(operator, Layout.TOKENS):
            return self._by_tokens(operator)
        if not self.lying(operator, Layout.SPLIT):
            return self._untouched(operator)
        return self._own_rows(operator) if operator.role is OperatorRole.EXPERT_COMBINE else self._inner(operator)

    def _untouched(self, operator: Operator) -> Operator:
        """Caches lie split from the start, so what reads nothing else that is split reads its own part of them."""
        self.note(operator, Layout.WHOLE)
        return operator

    def _gemm(self, operator: Operator, shape: GemmShape) -> Operator:
        if is_expert(operator) and self.sharding.expert > 1:
            self.note(operator, Layout.SPLIT)
            new, self.rows[operator.output.name] = split_experts(operator, shape, self.sharding, self.rows)
            return new
        how = linear_split(operator.name)
        if how is Split.REPLICATED:
            self.note(operator, Layout.PARTIAL if self.lying(operator, Layout.PARTIAL) else Layout.WHOLE)
            return operator
        if how is Split.ROW_PARALLEL:
            check_divisible(operator.name, shape.k, self.n)
            self.note(operator, Layout.PARTIAL)
            reads = tuple(self._read(a, 1.0 if a.tensor.name.endswith(".bias") else 1.0 / self.n)
                          for a in operator.reads)  # fmt: skip
            return replace(scale_work(operator, 1.0 / self.n), reads=reads, shape=replace(shape, k=shape.k / self.n))
        self.note(operator, Layout.SPLIT)
        share = self._share_of_heads(operator)
        writes = tuple(scale_access(a, self._kept(a.tensor.name)) for a in operator.writes)
        reads = tuple(self._read(a, share) for a in operator.reads)
        new = scale_axis(scale_work(operator, share), -1, share)
        return replace(new, reads=reads, writes=writes, shape=replace(shape, n=shape.n * share))

    def _read(self, access: Access, weight_share: Count) -> Access:
        if access.tensor.role is Role.WEIGHT:
            return scale_access(access, weight_share)
        if access.tensor.role is Role.CACHE:
            return scale_access(access, self._share(access.tensor.name))
        lie = self.lie(access.tensor)
        if lie is Layout.TOKENS:
            return scale_access(access, self.token_share)
        return scale_access(access, self._share(access.tensor.name)) if lie is Layout.SPLIT else access

    def _share_of_heads(self, operator: Operator) -> float:
        """Share of the output that a device makes, each tensor weighted by its size (ratios hold for all points)."""
        shares = [self._kept(a.tensor.name) for a in operator.writes]
        if len(shares) == 1:
            return shares[0]
        sizes = np.array([float(np.ravel(a.elements)[-1]) for a in operator.writes])
        ratios = sizes / np.max(sizes)
        return float(np.sum(ratios * np.array(shares)) / np.sum(ratios))

    def _inner(self, operator: Operator) -> Operator:
        """Everything between two linear layers: a device works on its heads or channels."""
        self.note(operator, Layout.SPLIT)
        self.lies.update({a.tensor.name: Layout.WHOLE for a in operator.writes if a.tensor.name in SHARED_LATENTS})
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
        return replace(scale_axis(scale_work(operator, share), axis, share), reads=reads, writes=writes, shape=shape)

    def _weights(self, access: Access, operator: Operator, share: Count) -> Count:
        """A norm whose weights serve every head is replicated; one with a weight for each channel is split."""
        if operator.kind is not Kind.NORM or access.tensor.role is not Role.WEIGHT:
            return share
        return 1.0 if np.max(access.tensor.elements) < np.max(operator.output_shape[-1]) else share

    def _by_tokens(self, operator: Operator) -> Operator:
        """A device works on its tokens; weights are replicated."""
        self.note(operator, Layout.TOKENS)
        share = self.token_share
        rows = operator.kind is Kind.EMBEDDING
        reads = tuple(
            a if a.tensor.role is Role.WEIGHT and not rows
            else Access(a.tensor, a.elements * share) if a.tensor.role is Role.WEIGHT else scale_access(a, share)
            for a in operator.reads
        )  # fmt: skip
        writes = tuple(scale_access(a, share) for a in operator.writes)
        return replace(scale_axis(scale_work(operator, share), 0, share), reads=reads, writes=writes)

    def _own_rows(self, operator: Operator) -> Operator:
        """Every device sums the rows of its own experts: a partial sum of all tokens."""
        self.note(operator, Layout.PARTIAL)
        share = self.rows[operator.reads[0].tensor.name]
        return replace(scale_work(operator, share), reads=tuple(self._read(a, 1.0) for a in operator.reads))
