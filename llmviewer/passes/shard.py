"""Tensor and expert parallelism: one device's share of every operator, and the collectives between devices.

Where a tensor lies follows from the data flow.  A linear layer split by columns turns a whole input into a split
output; one split by rows turns a split input into a partial sum; everything between works on the split.  A partial sum
is reduced before the first operator that is not linear in it.  So only linear layers stand in a table.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from llmviewer.errors import UserError
from llmviewer.ir import Access, Block, Count, Kind, Operator, Pass, Role, Tensor
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.collective import Collective, CollectiveShape, collective
from llmviewer.ops.gemm import GemmShape


class Lie(Enum):
    """How a tensor lies on the devices."""

    WHOLE = "whole"  # every device has all of it
    SPLIT = "split"  # every device has its heads, channels, experts or rows of the vocabulary
    PARTIAL = "partial"  # every device has a summand of it


#: Linear layers whose output is split; their input is whole.
COLUMNS = frozenset(
    "q_proj k_proj v_proj qkv_proj q_b_proj kv_b_proj gate_proj up_proj gate_up_proj shared_gate_proj shared_up_proj "
    "shared_gate_up_proj expert_gate_proj expert_up_proj expert_gate_up_proj in_proj in_proj_a in_proj_b in_proj_ba "
    "in_proj_qkv in_proj_qkvz in_proj_z output_gate dt_proj lm_head".split()
)
#: Linear layers whose input is split; their output is a partial sum.
ROWS = frozenset("o_proj down_proj shared_down_proj expert_down_proj out_proj x_proj".split())
#: Linear layers that every device runs whole: shared by all heads, or too small to split.
REPLICATED = frozenset(
    "router shared_gate q_a_proj kv_a_proj latent_in_proj latent_out_proj project_in project_out "
    "per_layer_model_projection per_layer_input_gate per_layer_projection exit_classifier exit_jump".split()
)
#: Operators linear in what they read: partial sums pass through.
LINEAR = frozenset(("expert_combine", "shared_scale", "shared_add", "latent_out_proj"))
#: Tensors that hold KV heads, replicated where there are fewer of them than devices; and the latent all heads share.
KV_HEADS = frozenset(("k_proj", "v_proj", "k_norm", "v_norm", "k_cache", "v_cache"))
SHARED = frozenset(("latent_cache", "latent_cache_quantize"))
#: The last tensor of a branch of a layer -> what its all-reduce is named after.
BRANCHES = {
    "o_proj": "attn",
    "out_proj": "attn",
    "down_proj": "mlp",
    "shared_add": "mlp",
    "expert_combine": "mlp",
    "latent_out_proj": "mlp",
}
#: Tables whose rows are dealt out by vocabulary.
TABLES = frozenset(("embedding", "per_layer_embedding"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """`tensor` devices share heads, channels and vocabulary.

    whole_experts: experts are dealt out instead of split.
    """

    tensor: int
    whole_experts: bool = False


def shard(sharding: Sharding) -> Pass:
    """The graph of one of `sharding.tensor` devices, with its collectives.

    Kept over all devices: matmul FLOPs and weight bytes, but for what is replicated: norms, routers, latent
    projections, KV heads beyond one per device.  Each branch of a layer ends in one all-reduce (a parallel layer's two
    branches share one), the embedding in another, the head in an all-gather of the logits.
    Source: Megatron-LM, arXiv 1909.08053.
    """
    if sharding.tensor == 1:
        return lambda graph: graph
    return lambda graph: graph.map_blocks(lambda block: _Walk(sharding=sharding).block(block))


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One block from its first operator to its last; remembers how every tensor lies."""

    sharding: Sharding
    lies: dict[str, Lie] = field(default_factory=dict)
    renamed: dict[str, Tensor] = field(default_factory=dict)
    done: list[Operator] = field(default_factory=list)
    kv_share: float = 1.0
    linear: frozenset[str] = LINEAR

    def block(self, block: Block) -> Block:
        """The block of one device."""
        self.kv_share = _kv_share(block, self.sharding.tensor)
        self.linear = LINEAR | _one_sum(block)
        for operator in block.operators:
            self.done.append(self._shared(self._reduced(_reading(operator, self.renamed))))
        self._close(block.name)
        states = tuple(replace(s, per_token=s.per_token * self._share(s.name), per_sequence=s.per_sequence / self._n)
                       for s in block.states)  # fmt: skip
        return replace(block, operators=tuple(self.done), states=states)

    @property
    def _n(self) -> float:
        return float(self.sharding.tensor)

    def _share(self, name: str) -> float:
        """A device's share of a split tensor."""
        if name in SHARED:
            return 1.0
        return self.kv_share if name in KV_HEADS else 1.0 / self._n

    def _lie(self, tensor: Tensor) -> Lie:
        return self.lies.get(tensor.name, Lie.WHOLE)

    def _reduced(self, operator: Operator) -> Operator:
        """The operator, after an all-reduce of what it reads as a partial sum and is not linear in."""
        partial = [a.tensor for a in operator.reads if self._lie(a.tensor) is Lie.PARTIAL]
        if not partial or operator.name in self.linear:
            return operator
        for tensor in partial:
            name = f"{BRANCHES.get(tensor.name, tensor.name)}_all_reduce"
            self.renamed[tensor.name] = self._collect(name, tensor, Collective.ALL_REDUCE)
        return _reading(operator, self.renamed)

    def _collect(self, name: str, tensor: Tensor, pattern: Collective) -> Tensor:
        """Append the collective of `tensor` (a device's own part of it) and return its output."""
        parts = self._n if pattern is Collective.ALL_GATHER else 1.0
        gathered = replace(tensor, name=name, elements=tensor.elements * parts)
        size = gathered.elements * tensor.dtype.bytes
        shape = CollectiveShape(pattern=pattern, devices=self._n, size_bytes=size)
        self.done.append(collective(name, tensor, gathered, self.done[-1].output_shape[0], shape))
        return gathered

    def _close(self, name: str) -> None:
        """What leaves a block is whole again."""
        last = self.done[-1].output
        if self._lie(last) is Lie.PARTIAL:
            self._collect(
                "embedding_all_reduce" if name == "embedding" else "mlp_all_reduce", last, Collective.ALL_REDUCE
            )
        elif self._lie(last) is Lie.SPLIT:
            self._collect("logits_all_gather", last, Collective.ALL_GATHER)

    def _shared(self, operator: Operator) -> Operator:
        """One device's part of an operator; notes how its outputs lie."""
        if operator.name in TABLES:
            return self._embedding(operator)
        if isinstance(operator.shape, GemmShape):
            return self._gemm(operator, operator.shape)
        if any(self._lie(a.tensor) is Lie.PARTIAL for a in operator.reads):
            self._note(operator, Lie.PARTIAL)
            return operator
        if all(self._lie(a.tensor) is Lie.WHOLE for a in operator.reads if a.tensor.role is not Role.WEIGHT):
            return operator
        return self._inner(operator)

    def _note(self, operator: Operator, lie: Lie) -> None:
        self.lies.update({a.tensor.name: lie for a in operator.writes})

    def _embedding(self, operator: Operator) -> Operator:
        """Rows of the vocabulary are dealt out; a device finds its share of the tokens' rows."""
        self._note(operator, Lie.PARTIAL)
        table, *others = operator.reads
        return replace(operator, reads=(_part(table, 1.0 / self._n), *others))

    def _gemm(self, operator: Operator, shape: GemmShape) -> Operator:
        dealt = self.sharding.whole_experts and operator.name.startswith("expert_")
        if operator.name in REPLICATED:
            return operator
        if operator.name in ROWS:
            self._note(operator, Lie.SPLIT if dealt else Lie.PARTIAL)
            share, writes = 1.0 / self._n, operator.writes
            shape = replace(shape, k=shape.k / self._n)
        elif operator.name in COLUMNS:
            self._note(operator, Lie.SPLIT)
            share = self._share_of_writes(operator)
            writes = tuple(_part(a, self._share(a.tensor.name)) for a in operator.writes)
            shape = replace(shape, n=shape.n * share)
        else:
            raise UserError(f"tensor parallelism: it is not known how '{operator.name}' is split")
        if dealt:
            writes = tuple(_part(a, share) for a in operator.writes)
            shape = _dealt(operator, self._n)
        reads = tuple(self._read(a, share) for a in operator.reads)
        return _scaled(replace(operator, reads=reads, writes=writes, shape=shape), share)

    def _read(self, access: Access, weight_share: float) -> Access:
        if access.tensor.role is Role.WEIGHT:
            return _part(access, weight_share)
        split = self._lie(access.tensor) is Lie.SPLIT
        return _part(access, self._share(access.tensor.name)) if split else access

    def _share_of_writes(self, operator: Operator) -> float:
        """Share of the output that a device makes, each tensor weighted by its size."""
        sizes = [float(np.ravel(a.elements)[0]) for a in operator.writes]
        shares = [self._share(a.tensor.name) for a in operator.writes]
        return float(np.average(shares, weights=sizes)) if sum(sizes) else 1.0 / self._n

    def _inner(self, operator: Operator) -> Operator:
        """Everything between two linear layers: a device works on its heads or channels."""
        self._note(operator, Lie.SPLIT)
        self.lies.update({a.tensor.name: Lie.WHOLE for a in operator.writes if a.tensor.name in SHARED})
        share, shape = self._share_of_writes(operator), operator.shape
        if isinstance(shape, AttentionShape):
            kv_heads = shape.kv_heads * self.kv_share if np.size(shape.kv_heads) == 1 else shape.kv_heads / self._n
            shape = replace(shape, heads=shape.heads / self._n, kv_heads=np.maximum(kv_heads, 1.0))
        weights = 1.0 if operator.kind is Kind.NORM else 1.0 / self._n
        reads = tuple(self._read(self._cached(a), weights) for a in operator.reads)
        writes = tuple(_part(a, self._share(a.tensor.name)) for a in operator.writes)
        return _scaled(replace(operator, reads=reads, writes=writes, shape=shape), share)

    def _cached(self, access: Access) -> Access:
        """Caches and states lie split from the start."""
        if access.tensor.role is Role.CACHE and access.tensor.name not in SHARED:
            self.lies[access.tensor.name] = Lie.SPLIT
        return access


def _kv_share(block: Block, devices: int) -> float:
    """A device's share of the KV heads of a block: one head at least."""
    for operator in block.operators:
        if isinstance(operator.shape, AttentionShape):
            heads, kv_heads = float(operator.shape.heads), float(np.ravel(operator.shape.kv_heads)[0])
            if heads % devices:
                raise UserError(
                    f"tensor parallelism over {devices} devices needs heads that divide by it; {heads:g} do not"
                )
            if max(kv_heads, devices) % min(kv_heads, devices):
                raise UserError(
                    f"tensor parallelism: {kv_heads:g} KV heads cannot be dealt to {devices} devices evenly"
                )
            return 1.0 / min(kv_heads, devices)
    return 1.0 / devices


def _one_sum(block: Block) -> frozenset[str]:
    """The residual sums of a parallel layer: nothing reads the first but the second, so one all-reduce serves both."""
    readers = {op.name for op in block.operators for a in op.reads if a.tensor.name == "attn_add"}
    return frozenset(("attn_add", "mlp_add")) if readers == {"mlp_add"} and _is_parallel(block) else frozenset()


def _is_parallel(block: Block) -> bool:
    """The feed-forward part starts from the layer's input."""
    names = [op.name for op in block.operators]
    return "o_proj" in names and "mlp_add" in names and names.index("attn_add") < names.index("mlp_add") - 1


def _reading(operator: Operator, renamed: dict[str, Tensor]) -> Operator:
    if all(a.tensor.name not in renamed for a in operator.reads):
        return operator
    reads = tuple(Access(renamed.get(a.tensor.name, a.tensor), a.elements) for a in operator.reads)
    return replace(operator, reads=reads)


def _part(access: Access, share: float) -> Access:
    tensor = access.tensor
    return Access(replace(tensor, elements=tensor.elements * share), access.elements * share)


def _dealt(operator: Operator, devices: float) -> GemmShape:
    shape = operator.shape
    assert isinstance(shape, GemmShape)
    return replace(shape, m=shape.m / devices, experts=shape.experts / devices, active=shape.active / devices)


def _scaled(operator: Operator, share: float) -> Operator:
    """The operator with `share` of its work."""

    def part(count: Count) -> Count:
        return count * share

    return replace(
        operator,
        matmul_flops=part(operator.matmul_flops),
        vector_flops=part(operator.vector_flops),
        recurrence_flops=part(operator.recurrence_flops),
        conv_flops=part(operator.conv_flops),
        special_ops=part(operator.special_ops),
        masked_flops=part(operator.masked_flops),
    )
