"""Data flow between the operators of a block, and fusion of several operators into one kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Place, Role, summed_work
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.ops.gemm import ADAPTER_PARTS, GemmShape

#: Roles in the order of precedence of a fused elementwise kernel.
ROLES = tuple(OperatorRole)
#: Joined names of sibling products (products of one input) -> name of the fused product.
SIBLING_NAMES = {
    "q_proj+k_proj+v_proj": "qkv_proj",
    "q_a_proj+kv_a_proj": "qkv_a_proj",
    "q_proj+kv_a_proj": "q_kv_a_proj",
    "expert_gate_proj+expert_up_proj": "expert_gate_up_proj",
    "shared_gate_proj+shared_up_proj": "shared_gate_up_proj",
    "gate_proj+up_proj": "gate_up_proj",
}
SIBLING_NAMES |= {
    "+".join(f"{one}{part}" for one in long.split("+")): f"{short}{part}"
    for long, short in SIBLING_NAMES.items()
    for part in ADAPTER_PARTS
}
#: Tensor that later blocks read in addition to the output of the last operator.
SECOND_OUTPUT = "per_layer_inputs"


@frozen(kw_only=False, slots=False, eq=False)  # no slots: names are kept
class Flow:
    """Data flow of the operators of one block; a place is the index of an operator."""

    operators: tuple[Operator, ...]

    @cached_property
    def places(self) -> dict[str, int]:
        """Operator name -> place in the block."""
        return {op.name: place for place, op in enumerate(self.operators)}

    @cached_property
    def _reads(self) -> list[set[str]]:
        """Tensors that each operator reads, without weights."""
        return [_names(op.reads) for op in self.operators]

    @cached_property
    def _writes(self) -> list[set[str]]:
        """Tensors that each operator writes, without weights."""
        return [_names(op.writes) for op in self.operators]

    @cached_property
    def _makes(self) -> list[set[str]]:
        """Activations that each operator writes."""
        return [_made(op) for op in self.operators]

    def made_by(self, place: int) -> list[int]:
        """The places of operators that write the activations read by `place`, in order."""
        read = {a.tensor.name for a in self.operators[place].reads if a.tensor.role is Role.ACTIVATION}
        return [k for k, made in enumerate(self._makes[:place]) if not read.isdisjoint(made)]

    def read_by(self, place: int) -> list[int]:
        """The places of operators that read the activations written by `place`, in order."""
        made = self._makes[place]
        return [k for k, read in enumerate(self._reads) if k > place and not made.isdisjoint(read)]

    def position(self, members: tuple[int, ...]) -> int | None:
        """Place at which members can run as one kernel: the last or the first; None if another operator prevents it."""
        made = set().union(*(self._writes[k] for k in members))
        read = set().union(*(self._reads[k] for k in members))
        between = self._between(members)
        if all(made.isdisjoint(self._reads[k]) for k in between):
            return members[-1]
        return members[0] if all(read.isdisjoint(self._writes[k]) for k in between) else None

    @staticmethod
    def _between(members: tuple[int, ...]) -> list[int]:
        return [k for k in range(members[0], members[-1]) if k not in members]

    def conflict(self, members: tuple[int, ...]) -> str:
        """The reason why members cannot be one kernel for any sizes; empty if they can."""
        inside = [self.operators[k] for k in members]
        linears = [op for op in inside if op.kind is Kind.GEMM]
        if len({shared_inputs(op) for op in linears}) > 1:
            return "two products in sequence"
        rowwise = [op.name for op in inside if op.kind is Kind.NORM or op.role is OperatorRole.QUANTIZE]
        if linears and any(name in rowwise for name in (op.name for op in inside[inside.index(linears[0]) :])):
            return f"a tile of {linears[0].name} has no whole row"
        if rowwise and any(op.kind is Kind.ATTENTION for op in inside):
            return f"{rowwise[0]} is already fused with rope"
        if _reads_more(inside):
            return f"{inside[-1].name} reads a tensor of which only a part is computed there"
        if self.position(members) is None:
            return f"{self.operators[self._between(members)[0]].name} runs between them"
        return ""

    def kept(self, members: tuple[int, ...]) -> dict[str, str]:
        """Intermediates of a kernel that must still be written -> name of another reader."""
        made = {name for k in members for name in self._makes[k]}
        used = {name for k in members for name in self._reads[k]} & made
        outside = [k for k in reversed(range(len(self.operators))) if k not in members]
        found = {name: self.operators[k].name for k in outside for name in used & self._reads[k]}
        last = self.operators[-1].output.name
        return found | {name: "the next block" for name in used if name in (last, SECOND_OUTPUT)}

    def merged(self, members: tuple[int, ...]) -> Operator:
        """One kernel for the members; intermediates are not read, and only written if another operator reads them."""
        if len(members) == 1:
            return self.operators[members[0]]
        inside = [self.operators[k] for k in members]
        head = min(inside, key=lambda op: op.kind.facts.fusion_rank)
        return Operator(
            name=joined_name(op.name for op in inside),
            kind=head.kind,
            reads=tuple(_reads(inside)),
            writes=tuple(self._kernel_writes(members)),
            output_shape=_output_shape(inside),
            compute=head.compute,
            **summed_work(inside),
            shape=_shape(inside, head),
            role=_role(inside, head),
        )

    def _kernel_writes(self, members: tuple[int, ...]) -> list[Access]:
        inside = [self.operators[k] for k in members]
        used = {name for k in members for name in self._reads[k]}
        kept = self.kept(members)
        internal = used - set(kept)
        return [a for op in inside for a in op.writes if not _is_activation(a) or a.tensor.name not in internal]


def shared_inputs(product: Operator) -> tuple[str, ...]:
    """Inputs by which products are alike; those with B of adapters, slices of one kernel, each have their own."""
    return () if product.name.endswith(ADAPTER_PARTS[-1]) else product.inputs


def joined_name(names: Iterable[str]) -> str:
    """The name of a fused kernel, such as `attn_norm+qkv_proj`."""
    return _shortened("+".join(names))


@lru_cache(256)
def _shortened(name: str) -> str:
    for long, short in SIBLING_NAMES.items():
        name = name.replace(long, short)
    return name


def _names(accesses: tuple[Access, ...]) -> set[str]:
    return {a.tensor.name for a in accesses if a.tensor.role is not Role.WEIGHT}


def _is_activation(access: Access) -> bool:
    return access.tensor.role is Role.ACTIVATION and access.tensor.place is Place.DEVICE


def _made(operator: Operator) -> set[str]:
    return {a.tensor.name for a in operator.writes if a.tensor.role is Role.ACTIVATION}


def _reads(inside: list[Operator]) -> list[Access]:
    """The accesses to tensors from outside the kernel; sibling products read their input once."""
    made: set[str] = set()
    by_products: set[str] = set()
    reads: list[Access] = []
    for operator in inside:
        for access in operator.reads:
            name, activation = access.tensor.name, access.tensor.role is Role.ACTIVATION
            if activation and name in made:
                continue
            if operator.kind is not Kind.GEMM or name not in by_products:
                reads.append(access)
        if operator.kind is Kind.GEMM:
            by_products |= _names(operator.reads)
        made |= _made(operator)
    return reads


def _reads_more(inside: list[Operator]) -> bool:
    """Whether an operator reads more of a tensor than another wrote: rope writes a part of latent attention's queries.

    A read of 0 elements, which a form of latent attention can have, counts too: otherwise the result for a point would
    depend on the other points.
    """
    made = {a.tensor.name: a.elements for op in inside for a in op.writes if a.tensor.role is Role.ACTIVATION}
    read = [a for op in inside for a in op.reads if a.tensor.name in made]
    return any(bool(np.any(a.elements > made[a.tensor.name])) or not np.any(a.elements) for a in read)


def _output_shape(inside: list[Operator]) -> tuple[Count, ...]:
    """The output shape of the last operator; the columns of sibling products are added."""
    *_, last = inside
    if last.kind is not Kind.GEMM:
        return last.output_shape
    width = total(op.output_shape[-1] for op in inside if op.kind is Kind.GEMM)
    return (*last.output_shape[:-1], width)


def _shape(inside: list[Operator], head: Operator) -> object:
    """The shape of the matrix product, with the columns of all siblings, or of attention."""
    if not isinstance(head.shape, GemmShape):
        return head.shape
    products = [op.shape for op in inside if isinstance(op.shape, GemmShape)]
    parts = 1.0 if len(products) > 1 else head.shape.parts
    return replace(head.shape, n=sum(shape.n for shape in products), parts=parts)


def _role(inside: list[Operator], head: Operator) -> OperatorRole:
    """Role of the fused kernel: for elementwise work the first in precedence, for sibling products the first one's."""
    if head.kind in (Kind.ELEMENTWISE, Kind.COLLECTIVE):
        return min((op.role for op in inside), key=ROLES.index)
    return inside[0].role if "+" not in joined_name(op.name for op in inside) else OperatorRole.OTHER
