"""Collectives that an operator needs before it runs on one device's part: reductions, gathers, all-to-alls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.ir import Access, Operator, Role, Tensor, whole
from llmviewer.core.kinds import OperatorRole
from llmviewer.ops.collective import COMBINE, DISPATCH, Collective, CollectiveShape, collective
from llmviewer.ops.gemm import GemmShape, is_routed
from llmviewer.techniques.parallel.sharding import (
    BRANCH_OUTPUTS,
    SCATTERED,
    Layout,
    Sharding,
    dispatch_share,
    passes_partial_sums,
)
from llmviewer.techniques.scaling import scale_access

#: Base name of the all-gather of the head.
LOGITS = "logits"


@dataclass(slots=True, kw_only=True)
class Exchanges:
    """Layout of every tensor of a block, and the operators and collectives of one device so far.

    Later operators still have whole tensors; those in `done` have a device's part.
    """

    sharding: Sharding
    layouts: dict[str, Layout] = field(default_factory=dict)
    rows: dict[str, Count] = field(default_factory=dict)  # tensors with rows of experts -> a device's share
    renamed: dict[str, Tensor] = field(default_factory=dict)
    siblings: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)  # tensor -> all outputs of its operator
    dispatched: dict[str, Tensor] = field(default_factory=dict)
    done: list[Operator] = field(default_factory=list)
    sums: frozenset[str] = frozenset()
    tokens: Count = 1.0

    @property
    def n(self) -> float:
        """Devices of a tensor group."""
        return float(self.sharding.tensor)

    @property
    def token_share(self) -> Count:
        """Share of the tokens on the busiest device."""
        tokens = np.maximum(self.tokens, np.finfo(np.float64).tiny)  # a chunk has no rows of logits
        return np.ceil(self.tokens / self.n) / tokens

    def layout(self, tensor: Tensor) -> Layout:
        """The layout of a tensor; whole unless noted otherwise."""
        return self.layouts.get(tensor.name, Layout.WHOLE)

    def inputs_with(self, operator: Operator, layout: Layout) -> list[Tensor]:
        """The inputs of an operator that have this layout, without weights."""
        known = self.layouts
        return [
            a.tensor
            for a in operator.reads
            if a.tensor.role is not Role.WEIGHT and known.get(a.tensor.name, Layout.WHOLE) is layout
        ]

    def set_outputs(self, operator: Operator, layout: Layout) -> None:
        """Note the layout of all outputs of an operator."""
        self.layouts.update({a.tensor.name: layout for a in operator.writes})

    def prepared(self, operator: Operator) -> Operator:
        """The operator after every collective that its inputs need, which are appended to `done`."""
        written = tuple(a.tensor for a in operator.writes if a.tensor.role is Role.ACTIVATION)
        self.siblings.update({tensor.name: written for tensor in written})
        gathered = self._after_gather(self._after_reduction(self._reading(operator)))
        return self._after_all_to_all(self._after_row_gather(gathered))

    def _reading(self, operator: Operator) -> Operator:
        return operator.reading({old: new.name for old, new in self.renamed.items()})

    def _after_reduction(self, operator: Operator) -> Operator:
        """The operator after a reduction of its partial sums, unless it is linear in them."""
        partial, tokens = self.inputs_with(operator, Layout.PARTIAL), self.inputs_with(operator, Layout.TOKENS)
        if not partial or operator.name in self.sums or (passes_partial_sums(operator.name) and not tokens):
            return operator
        for tensor in partial:
            if self.layout(tensor) is Layout.PARTIAL and tensor.name not in self.renamed:
                self._reduce(tensor, to_tokens=bool(tokens) or self._scatters(tensor))
        return self._reading(operator)

    def _scatters(self, tensor: Tensor) -> bool:
        return self.sharding.sequence and tensor.name in SCATTERED

    def _reduce(self, tensor: Tensor, *, to_tokens: bool) -> None:
        """Append one collective for all outputs of the operator that wrote the tensor."""
        pattern = Collective.REDUCE_SCATTER if to_tokens else Collective.ALL_REDUCE
        tensors = self.siblings[tensor.name]
        source = tensor.name if len(tensors) == 1 else tensor.name.rpartition("_")[0]
        made = self._collect(BRANCH_OUTPUTS.get(source, source), source, tensors, pattern)
        if to_tokens:
            self.layouts.update({new.name: Layout.TOKENS for new in made})

    def _after_gather(self, operator: Operator) -> Operator:
        """The operator after an all-gather of inputs that are split by tokens and that it needs whole.

        Without sequence parallelism, expert outputs that are split by tokens are added to a whole residual stream.
        """
        tokens = self.inputs_with(operator, Layout.TOKENS)
        needs = isinstance(operator.shape, GemmShape) or self.inputs_with(operator, Layout.SPLIT)
        adds_to_stream = not self.sharding.sequence and not passes_partial_sums(operator.name)
        if adds_to_stream and self.inputs_with(operator, Layout.WHOLE):
            needs = True
        if not tokens or not needs:
            return operator
        for tensor in tokens:
            self._gather(tensor)
        return self._reading(operator)

    def _after_row_gather(self, operator: Operator) -> Operator:
        """The operator after an all-gather of split inputs if it needs whole rows of them."""
        if not operator.kind.facts.whole_rows:
            return operator
        for tensor in self.inputs_with(operator, Layout.SPLIT):
            name = LOGITS if tensor.name == "lm_head" else tensor.name
            self._collect(name, tensor.name, (tensor,), Collective.ALL_GATHER)
        return self._reading(operator)

    def _gather(self, tensor: Tensor) -> None:
        source = tensor.name.removesuffix("_quantize").removesuffix("_norm")
        self._collect(BRANCH_OUTPUTS.get(source, source), source, (tensor,), Collective.ALL_GATHER)

    def _collect(self, base: str, source: str, tensors: tuple[Tensor, ...], pattern: Collective) -> tuple[Tensor, ...]:
        """Append a collective of whole `tensors`, named by `base` or, if that is taken, by `source`; its outputs."""
        name = f"{base}_{pattern.value}"
        if any(op.name == name for op in self.done):
            name = f"{source}_{pattern.value}"
        names = [name] if len(tensors) == 1 else [f"{t.name}_{pattern.value}" for t in tensors]
        made = tuple(t.called(new) for t, new in zip(tensors, names, strict=True))
        self.renamed.update({old.name: new for old, new in zip(tensors, made, strict=True)})
        reads, writes = tuple(map(whole, tensors)), tuple(map(whole, made))
        if pattern is Collective.ALL_GATHER:
            share = self.token_share if self.layout(tensors[0]) is Layout.TOKENS else 1.0 / self.n
            reads = tuple(scale_access(a, share) for a in reads)
        elif pattern is Collective.REDUCE_SCATTER:
            writes = tuple(scale_access(a, self.token_share) for a in writes)
        size = total(t.elements * t.dtype.bytes for t in tensors)
        self.done.append(collective(name, reads, writes, self.tokens, self._shape(pattern, self.n, size)))
        return made

    def _shape(self, pattern: Collective, devices: float, size: Count) -> CollectiveShape:
        near, through_host = self.sharding.near, self.sharding.through_host
        return CollectiveShape(pattern=pattern, devices=devices, size_bytes=size, near=near, through_host=through_host)

    def close(self, operator: Operator) -> None:
        """Make the output of the block whole, or split by tokens.  operator: the last one, before sharding."""
        last, self.tokens = operator.output, operator.output_shape[0]
        if self.layout(last) is Layout.PARTIAL:
            self._reduce(last, to_tokens=self._scatters(last))
        elif self.layout(last) is Layout.SPLIT:
            self._collect(LOGITS, last.name, (last,), Collective.ALL_GATHER)
        elif self.layout(last) is Layout.TOKENS and not self.sharding.sequence:
            self._gather(last)

    def _after_all_to_all(self, operator: Operator) -> Operator:
        """The operator after the all-to-all that sends tokens to their experts, or rows back to their tokens."""
        if self.sharding.expert == 1 or self.sharding.data == 1:
            return operator
        if is_expert(operator) and self.layout(operator.reads[0].tensor) is Layout.WHOLE:
            return self._dispatched(operator)
        back = [t for t in self.inputs_with(operator, Layout.SPLIT) if operator.role is OperatorRole.EXPERT_COMBINE]
        for tensor in back:
            pattern = Collective.REDUCE_SCATTER if self.sharding.gathers else Collective.ALL_TO_ALL
            made = replace(tensor, name=f"{COMBINE}{pattern.value}")
            read, write = scale_access(whole(tensor), self.rows[tensor.name]), scale_access(whole(made), 1.0 / self.n)
            self._exchange(pattern, read, write, operator.reads[0].elements, operator.writes[0].elements)
            self.layouts[made.name] = Layout.TOKENS if self.n > 1 else Layout.WHOLE
            self.renamed[tensor.name] = made
        return self._reading(operator)

    def _dispatched(self, operator: Operator) -> Operator:
        shape = operator.shape
        assert isinstance(shape, GemmShape)
        x, *weights = operator.reads
        if x.tensor.name not in self.dispatched:
            rows, pattern = shape.m * shape.k, Collective.ALL_GATHER if self.sharding.gathers else Collective.ALL_TO_ALL
            made = Tensor(name=f"{DISPATCH}{pattern.value}", elements=rows, dtype=x.tensor.dtype)
            self.rows[made.name] = dispatch_share(shape, self.sharding)
            self.layouts[made.name] = Layout.SPLIT
            read, write = scale_access(x, 1.0 / self.n), scale_access(whole(made), self.rows[made.name])
            self._exchange(pattern, read, write, rows, self.tokens * shape.k)
            self.dispatched[x.tensor.name] = made
        return replace(operator, reads=(whole(self.dispatched[x.tensor.name]), *weights))

    def _exchange(self, pattern: Collective, read: Access, write: Access, rows: Count, tokens: Count) -> None:
        """Append an exchange with the experts of all replicas.

        rows, tokens: elements of the rows for experts, and of the tokens, of one replica.
        """
        devices = float(self.sharding.expert)
        sent = rows if pattern is Collective.ALL_TO_ALL else tokens
        size = sent / self.n * read.tensor.dtype.bytes * devices
        shape = self._shape(pattern, devices, size)
        self.done.append(collective(write.tensor.name, (read,), (write,), self.tokens, shape))


def is_expert(operator: Operator) -> bool:
    """Whether an operator multiplies rows by the matrices of the experts they are routed to."""
    return is_routed(operator) and isinstance(operator.shape, GemmShape)
