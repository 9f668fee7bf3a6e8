"""`--context-parallel-size`: tokens of every sequence, with their keys and values, split over devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Place, Role, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Group
from llmviewer.ops.attention import SCORE_TENSORS, AttentionShape
from llmviewer.ops.collective import Collective, CollectiveShape, collective
from llmviewer.ops.gemm import GemmShape
from llmviewer.techniques.kernels.flash_attention import PREFIX_KERNEL
from llmviewer.techniques.scaling import scale_access, scale_axis, scale_moved, scale_work

#: Operators of the head, whose rows belong to the last tokens, which one device has.
HEAD_OPERATORS = ("lm_head", "logits_all_gather")


def context_parallel(devices: int, near: float, *, through_host: bool = False) -> Pass:
    """Store 1/c of the tokens of every sequence and 1/c of its keys and values on each device; replicate weights.

    In a step with several tokens per sequence, each device works on ceil(n/c) of them; keys and values travel around a
    ring, so that its queries attend to all of them: an equal share of the pairs of a causal mask if tokens are assigned
    zigzag.  In decode or verification (all tokens need logits), every device works on all tokens with its own keys, and
    the partial outputs are combined.  Draft heads have no keys and run whole.  Recurrent layers pass their state from
    token to token and raise UserError.
    Source: Ring Attention arXiv 2310.01889; context parallelism for inference arXiv 2411.01783.
    """

    def change(graph: Graph) -> Graph:
        for block, operator in graph:
            if operator.kind in (Kind.RECURRENCE, Kind.CONV):
                raise UserError(
                    f"--context-parallel-size: '{operator.name}' of {block.name} processes its tokens one after another"
                )
        of_all = [op.shape for _, op in graph if op.name != PREFIX_KERNEL]  # a cascade's prefix is one sequence
        shapes = [shape for shape in of_all if isinstance(shape, AttentionShape)]
        if not shapes:
            return graph
        share = _tokens_share(shapes[0].groups, devices)
        split = _ContextSplit(devices=float(devices), share=share, near=near, through_host=through_host)
        return graph.map_blocks(split.block)

    return change


def _tokens_share(groups: tuple[Group, ...], devices: int) -> Count:
    """Share of the tokens of a step on the busiest device."""
    own = total(
        g.batch_size * np.where(g.logit_positions < g.new_tokens, np.ceil(g.new_tokens / devices), g.new_tokens)
        for g in groups
    )
    return own / total(g.tokens for g in groups)


@frozen
class _ContextSplit:
    """Split of a step over `devices`.

    share: of its tokens, 1.0 if each has all.  near, through_host: as of CollectiveShape.
    """

    devices: float
    share: Count
    near: float
    through_host: bool = False

    @property
    def ring(self) -> Count:
        """1.0 if tokens are split, 0.0 if every device has all of them."""
        return np.where(self.share < 1.0, 1.0, 0.0)

    @property
    def keys_share(self) -> Count:
        """Share of the keys that the queries of a device attend to: all with the ring, otherwise its own."""
        return np.where(self.share < 1.0, 1.0, 1.0 / self.devices)

    def block(self, block: Block) -> Block:
        """A device's part of a block."""
        operators: list[Operator] = []
        combined: dict[str, str] = {}
        for operator in block.operators:
            op = operator.reading(combined)
            if isinstance(op.shape, AttentionShape):
                if op.role is not OperatorRole.SOFTMAX:
                    operators.append(self._gather(op))
                operators.append(self._attention(op))
                if op.role in (OperatorRole.WEIGHTED_VALUES, OperatorRole.ATTENTION):
                    operators.append(self._combine(op))
                    combined[op.output.name] = operators[-1].output.name
            else:
                operators.append(op if op.name in HEAD_OPERATORS else self._other(op))
        states = tuple(replace(state, per_token=state.per_token / self.devices) for state in block.states)
        return replace(block, operators=tuple(operators), states=states)

    def _attention(self, operator: Operator) -> Operator:
        """The attention kernel with 1/c of the pairs."""

        def read(access: Access) -> Access:
            tensor = access.tensor
            if tensor.role is Role.WEIGHT:
                return access
            if tensor.role is Role.CACHE or tensor.name.startswith("kv_b"):
                return scale_access(access, self.keys_share)
            return scale_access(access, 1.0 / self.devices if tensor.name in SCORE_TENSORS else self.share)

        new = scale_work(operator, 1.0 / self.devices)
        return replace(new, reads=tuple(map(read, new.reads)), writes=tuple(map(read, new.writes)))

    def _gather(self, operator: Operator) -> Operator:
        """The all-gather of keys and values of the whole context, if tokens are split."""
        kept = {
            a.tensor.name: replace(a.tensor, place=Place.DEVICE) for a in operator.reads if a.tensor.role is Role.CACHE
        }
        reads = tuple(scale_access(whole(tensor), self.ring / self.devices) for tensor in kept.values())
        received = self.ring * ((self.devices - 1.0) / self.devices)
        writes = tuple(scale_access(whole(replace(t, name=f"{t.name}_gathered")), received) for t in kept.values())
        size = total(t.elements * t.dtype.bytes for t in kept.values()) * self.ring
        exchange = self._shape(Collective.ALL_GATHER, size)
        name = f"{operator.name}_kv_all_gather" if operator.role is not OperatorRole.ATTENTION else "kv_all_gather"
        return replace(collective(name, reads, writes, operator.output_shape[0], exchange), where=self.ring)

    def _combine(self, operator: Operator) -> Operator:
        """The all-reduce of partial outputs, maxima and sums of scores, if every device has all tokens."""
        shape, out = operator.shape, operator.output
        assert isinstance(shape, AttentionShape)
        unsplit = 1.0 - self.ring
        name = "attn_combine_all_reduce"
        partial = out.elements * (1.0 + 2.0 / shape.v_dim) * unsplit
        read = Access(replace(out, elements=out.elements * self.share), partial)
        write = Access(replace(out, name=name, elements=out.elements * self.share), out.elements * unsplit)
        exchange = self._shape(Collective.ALL_REDUCE, partial * out.dtype.bytes)
        return replace(collective(name, (read,), (write,), operator.output_shape[0], exchange), where=unsplit)

    def _shape(self, pattern: Collective, size: Count) -> CollectiveShape:
        return CollectiveShape(
            pattern=pattern, devices=self.devices, size_bytes=size, near=self.near, through_host=self.through_host
        )

    def _other(self, operator: Operator) -> Operator:
        """An operator on a device's own tokens; the expansion of a cached latent runs on the keys it attends to."""
        shape, share = operator.shape, self.share
        if isinstance(shape, GemmShape):
            if operator.role is OperatorRole.LATENT_EXPANSION:
                share = np.where(_expands_latent(operator) > 0.0, self.keys_share, self.share)
            missed = np.power(1.0 - shape.active / shape.experts, share) if shape.experts > 1.0 else 0.0
            shape = replace(shape, m=shape.m * share, active=shape.experts * (1.0 - missed))
        if isinstance(shape, CollectiveShape):
            shape = replace(shape, size_bytes=shape.size_bytes * share)
        reads = tuple(self._read(operator, a, shape, share) for a in operator.reads)
        writes = tuple(scale_access(a, share) for a in operator.writes)
        return replace(scale_axis(scale_work(operator, share), 0, share), reads=reads, writes=writes, shape=shape)

    def _read(self, operator: Operator, access: Access, shape: object, share: Count) -> Access:
        if access.tensor.role is not Role.WEIGHT:
            return scale_access(access, share)
        if operator.kind is Kind.EMBEDDING:
            return scale_moved(access, share)
        if isinstance(shape, GemmShape) and shape.experts > 1.0:
            return Access(access.tensor, access.tensor.elements * (shape.active / shape.experts))
        return access


def _expands_latent(operator: Operator) -> Count:
    """1.0 if latent attention expands the cached latent, else 0.0."""
    latent = next((a.elements for a in operator.reads if a.tensor.role is Role.CACHE), 0.0)
    return np.where(np.asarray(latent) > 0.0, 1.0, 0.0)
