"""What devices exchange before an operator can run on its own part: reductions, gathers, all-to-alls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.ir import Access, Operator, Role, Tensor, whole
from llmviewer.core.kinds import OperatorRole
from llmviewer.ops.collective import Collective, CollectiveShape, collective
from llmviewer.ops.gemm import GemmShape, is_routed
from llmviewer.techniques.parallel.experts import dispatch_share
from llmviewer.techniques.parallel.sharding import BRANCH_OUTPUTS, SCATTERED, Layout, Sharding, passes_partial_sums
from llmviewer.techniques.parallel.share import scale_access

#: What the all-gather of the head is named after.
LOGITS = "logits"


@dataclass(slots=True, kw_only=True)
class Exchanges:
    """How every tensor of a block lies, and the collectives so far.

    Operators yet to come hold whole tensors; those done hold a device's part.
    """

    sharding: Sharding
    lies: dict[str, Layout] = field(default_factory=dict)
    rows: dict[str, Count] = field(default_factory=dict)  # tensors of experts' rows -> a device's share
    renamed: dict[str, Tensor] = field(default_factory=dict)
    together: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)  # tensor -> all its operator wrote
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
        """Tokens on the fullest device, of all."""
        some = np.maximum(self.tokens, np.finfo(np.float64).tiny)  # a chunk has no rows of logits
        return np.ceil(self.tokens / self.n) / some

    def lie(self, tensor: Tensor) -> Layout:
        """How a tensor lies."""
        return self.lies.get(tensor.name, Layout.WHOLE)

    def lying(self, operator: Operator, lie: Layout) -> list[Tensor]:
        """What it reads that lies so."""
        reads = (a.tensor for a in operator.reads if a.tensor.role is not Role.WEIGHT)
        return [tensor for tensor in reads if self.lie(tensor) is lie]

    def note(self, operator: Operator, lie: Layout) -> None:
        """All that it writes lies so."""
        self.lies.update({a.tensor.name: lie for a in operator.writes})

    def ready(self, operator: Operator) -> Operator:
        """The operator after every exchange that its inputs need; notes what it writes."""
        written = tuple(a.tensor for a in operator.writes if a.tensor.role is Role.ACTIVATION)
        self.together.update({tensor.name: written for tensor in written})
        return self._exchanged(self._whole_rows(self._gathered(self._reduced(self._reading(operator)))))

    def _reading(self, operator: Operator) -> Operator:
        return operator.reading({old: new.name for old, new in self.renamed.items()})

    def _reduced(self, operator: Operator) -> Operator:
        """After the reduction of what it reads as a partial sum and is not linear in."""
        partial, tokens = self.lying(operator, Layout.PARTIAL), self.lying(operator, Layout.TOKENS)
        if not partial or operator.name in self.sums or (passes_partial_sums(operator.name) and not tokens):
            return operator
        for tensor in partial:
            if self.lie(tensor) is Layout.PARTIAL and tensor.name not in self.renamed:
                self._reduce(tensor, to_tokens=bool(tokens) or self._scatters(tensor))
        return self._reading(operator)

    def _scatters(self, tensor: Tensor) -> bool:
        return self.sharding.sequence and tensor.name in SCATTERED

    def _reduce(self, tensor: Tensor, *, to_tokens: bool) -> None:
        """One collective for all that the tensor's operator wrote."""
        pattern = Collective.REDUCE_SCATTER if to_tokens else Collective.ALL_REDUCE
        tensors = self.together[tensor.name]
        of = tensor.name if len(tensors) == 1 else tensor.name.rpartition("_")[0]
        made = self._collect(BRANCH_OUTPUTS.get(of, of), of, tensors, pattern)
        if to_tokens:
            self.lies.update({new.name: Layout.TOKENS for new in made})

    def _gathered(self, operator: Operator) -> Operator:
        """After an all-gather of what it reads by tokens and needs whole.

        Without sequence parallelism what experts left by tokens meets a whole residual stream.
        """
        tokens = self.lying(operator, Layout.TOKENS)
        needs = isinstance(operator.shape, GemmShape) or self.lying(operator, Layout.SPLIT)
        if not self.sharding.sequence and not passes_partial_sums(operator.name) and self.lying(operator, Layout.WHOLE):
            needs = True
        if not tokens or not needs:
            return operator
        for tensor in tokens:
            self._gather(tensor)
        return self._reading(operator)

    def _whole_rows(self, operator: Operator) -> Operator:
        """The operator after an all-gather of split inputs of which it needs every column."""
        if not operator.kind.facts.whole_rows:
            return operator
        for tensor in self.lying(operator, Layout.SPLIT):
            name = LOGITS if tensor.name == "lm_head" else tensor.name
            self._collect(name, tensor.name, (tensor,), Collective.ALL_GATHER)
        return self._reading(operator)

    def _gather(self, tensor: Tensor) -> None:
        of = tensor.name.removesuffix("_quantize").removesuffix("_norm")
        self._collect(BRANCH_OUTPUTS.get(of, of), of, (tensor,), Collective.ALL_GATHER)

    def _collect(self, base: str, of: str, tensors: tuple[Tensor, ...], pattern: Collective) -> tuple[Tensor, ...]:
        """Append the collective of whole `tensors`; what it makes, under its new names."""
        name = f"{base}_{pattern.value}"
        if any(op.name == name for op in self.done):
            name = f"{of}_{pattern.value}"
        names = [name] if len(tensors) == 1 else [f"{t.name}_{pattern.value}" for t in tensors]
        made = tuple(replace(t, name=new) for t, new in zip(tensors, names, strict=True))
        self.renamed.update({old.name: new for old, new in zip(tensors, made, strict=True)})
        reads, writes = tuple(map(whole, tensors)), tuple(map(whole, made))
        if pattern is Collective.ALL_GATHER:
            share = self.token_share if self.lie(tensors[0]) is Layout.TOKENS else 1.0 / self.n
            reads = tuple(scale_access(a, share) for a in reads)
        elif pattern is Collective.REDUCE_SCATTER:
            writes = tuple(scale_access(a, self.token_share) for a in writes)
        size = total(t.elements * t.dtype.bytes for t in tensors)
        shape = CollectiveShape(pattern=pattern, devices=self.n, size_bytes=size, near=self.sharding.near)
        self.done.append(collective(name, reads, writes, self.tokens, shape))
        return made

    def close(self, operator: Operator) -> None:
        """What leaves a block is whole again, or by tokens.  operator: the last, as it was."""
        last, self.tokens = operator.output, operator.output_shape[0]
        if self.lie(last) is Layout.PARTIAL:
            self._reduce(last, to_tokens=self._scatters(last))
        elif self.lie(last) is Layout.SPLIT:
            self._collect(LOGITS, last.name, (last,), Collective.ALL_GATHER)
        elif self.lie(last) is Layout.TOKENS and not self.sharding.sequence:
            self._gather(last)

    def _exchanged(self, operator: Operator) -> Operator:
        """After the all-to-all that brings tokens to their experts, or rows back to their tokens."""
        if self.sharding.expert == 1 or self.sharding.data == 1:
            return operator
        if is_expert(operator) and self.lie(operator.reads[0].tensor) is Layout.WHOLE:
            return self._dispatched(operator)
        back = [t for t in self.lying(operator, Layout.SPLIT) if operator.role is OperatorRole.EXPERT_COMBINE]
        for tensor in back:
            made = replace(tensor, name="combine_all_to_all")
            rows = operator.reads[0].elements
            self._all_to_all(
                scale_access(whole(tensor), self.rows[tensor.name]), scale_access(whole(made), 1.0 / self.n), rows
            )
            self.lies[made.name] = Layout.TOKENS if self.n > 1 else Layout.WHOLE
            self.renamed[tensor.name] = made
        return self._reading(operator)

    def _dispatched(self, operator: Operator) -> Operator:
        shape = operator.shape
        assert isinstance(shape, GemmShape)
        x, *weights = operator.reads
        if x.tensor.name not in self.dispatched:
            rows = shape.m * shape.k
            made = Tensor(name="dispatch_all_to_all", elements=rows, dtype=x.tensor.dtype)
            self.rows[made.name] = dispatch_share(shape, self.sharding)
            self.lies[made.name] = Layout.SPLIT
            self._all_to_all(scale_access(x, 1.0 / self.n), scale_access(whole(made), self.rows[made.name]), rows)
            self.dispatched[x.tensor.name] = made
        return replace(operator, reads=(whole(self.dispatched[x.tensor.name]), *weights))

    def _all_to_all(self, read: Access, write: Access, rows: Count) -> None:
        """rows: elements that the sequences of one replica send or get back."""
        devices = float(self.sharding.expert)
        size = rows / self.n * read.tensor.dtype.bytes * devices
        shape = CollectiveShape(
            pattern=Collective.ALL_TO_ALL, devices=devices, size_bytes=size, near=self.sharding.near
        )
        self.done.append(collective(write.tensor.name, (read,), (write,), self.tokens, shape))


def is_expert(operator: Operator) -> bool:
    """Whether it multiplies rows by the matrices of the experts they are routed to."""
    return is_routed(operator) and isinstance(operator.shape, GemmShape)
