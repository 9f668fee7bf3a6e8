"""The intermediate representation: tensors, accesses, operators, blocks, graphs.  Bytes are derived only here.

A dimension is a float or a float64 array with one entry per forward pass, so one graph can describe a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, fields, replace
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from llmviewer.core.counts import Count, present, total
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.kinds import TIED, Kind, OperatorRole

#: Scope of blocks that are not decoder layers: embedding, head, and blocks added by a graph pass.
MODEL_SCOPE = "model"
#: Suffix of weights that a checkpoint stores as buffers, not parameters (the correction bias of a router).
BUFFER = ".buffer"


class Role(Enum):
    """The purpose of a tensor; it selects the byte column that counts the tensor."""

    WEIGHT = "weight"
    ACTIVATION = "activation"
    CACHE = "cache"  # keys, values, latents, recurrent and convolution state


class Place(Enum):
    """The memory or connection that a tensor is read from or written to."""

    DEVICE = "device"
    L2 = "l2"
    LINK = "link"
    NETWORK = "network"  # between nodes
    HOST = "host"
    DISK = "disk"


@frozen(eq=False)
class Tensor:
    """A stored tensor: name, number of elements, number format, role and place."""

    name: str
    elements: Count
    dtype: Dtype
    role: Role = Role.ACTIVATION
    place: Place = Place.DEVICE

    def at(self, place: Place) -> Tensor:
        """A copy of the tensor with another place."""
        return Tensor(name=self.name, elements=self.elements, dtype=self.dtype, role=self.role, place=place)

    def called(self, name: str) -> Tensor:
        """A copy of the tensor with another name."""
        return Tensor(name=name, elements=self.elements, dtype=self.dtype, role=self.role, place=self.place)

    def sized(self, elements: Count) -> Tensor:
        """A copy of the tensor with another number of elements."""
        return Tensor(name=self.name, elements=elements, dtype=self.dtype, role=self.role, place=self.place)

    def stored_as(self, dtype: Dtype) -> Tensor:
        """A copy of the tensor in another number format."""
        return Tensor(name=self.name, elements=self.elements, dtype=dtype, role=self.role, place=self.place)


@frozen(kw_only=False, eq=False)
class Access:
    """The `elements` of a tensor that one forward pass moves; may differ from those stored (an embedding gathers)."""

    tensor: Tensor
    elements: Count


def whole(tensor: Tensor) -> Access:
    """The access that moves every element of `tensor` once."""
    return Access(tensor, tensor.elements)


#: Metadata of the fields of Operator that count work.
WORK: Mapping[str, bool] = {"work": True}


@frozen(slots=False, eq=False)  # no slots: derived figures are kept
class Operator:
    """The work of one kernel.

    matmul_flops run in the matrix units; vector_flops, recurrence_flops and conv_flops on the vector units.
    special_ops: exponentials (included in vector_flops) that also load the special-function units.
    masked_flops: the part of matmul_flops spent on pairs the mask discards (eager attention).
    compute: the dtype class of the matrix product.  shape: dimensions that graph passes and kernel models read.
    where: 1.0 for forward passes that run it; for the others its counts are zero.  runs_on: the device or its host.
    one_run, runs: where counts are means over steps, the operator of those that run it, and their share of all steps.
    """

    name: str
    kind: Kind
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    output_shape: tuple[Count, ...]
    role: OperatorRole = OperatorRole.OTHER
    compute: str = "fp32"
    matmul_flops: Count = field(default=0.0, metadata=WORK)
    vector_flops: Count = field(default=0.0, metadata=WORK)
    recurrence_flops: Count = field(default=0.0, metadata=WORK)
    conv_flops: Count = field(default=0.0, metadata=WORK)
    special_ops: Count = field(default=0.0, metadata=WORK)
    masked_flops: Count = field(default=0.0, metadata=WORK)
    shape: object = None
    where: Count = 1.0
    runs_on: Place = Place.DEVICE
    one_run: Operator | None = None
    runs: Count = 1.0

    @property
    def is_kernel(self) -> bool:
        """Whether a device kernel runs it: not if the host runs it, nor if it is a copy between host and device."""
        return self.runs_on is Place.DEVICE and self.kind is not Kind.COPY

    @property
    def output(self) -> Tensor:
        """The first tensor written, which the next operator reads."""
        return self.writes[0].tensor

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the activations and caches that it reads."""
        return tuple(a.tensor.name for a in self.reads if a.tensor.role is not Role.WEIGHT)

    @property
    def vector_work(self) -> Count:
        """FLOP on the vector units: elementwise, recurrence and convolution."""
        return total((self.vector_flops, self.recurrence_flops, self.conv_flops))

    @property
    def flops(self) -> Count:
        """Total work: matmul + vector + recurrence + convolution [FLOP]."""
        return total((self.matmul_flops, self.vector_flops, self.recurrence_flops, self.conv_flops))

    @property
    def useful_flops(self) -> Count:
        """Matmul FLOPs of pairs that the mask keeps."""
        return self.matmul_flops - self.masked_flops

    def reading(self, names: Mapping[str, str]) -> Operator:
        """A copy that reads tensors under new names.  names: old name -> new name."""
        if not any(a.tensor.name in names for a in self.reads):
            return self
        reads = (Access(a.tensor.called(names.get(a.tensor.name, a.tensor.name)), a.elements) for a in self.reads)
        return self.having(reads=tuple(reads))

    def having(self, **changes: Any) -> Operator:
        """A copy with other values of fields, as by `dataclasses.replace`, in a third of its time."""
        assert changes.keys() <= FIELDS, changes.keys() - FIELDS
        known, copy = self.__dict__, object.__new__(Operator)
        object.__setattr__(copy, "__dict__", {name: known[name] for name in FIELDS} | changes)
        return copy

    def map_work(self, change: Callable[[Count], Count], **changes: Any) -> Operator:
        """The operator with `change` applied to each of its counts of work; a plain zero stays zero.

        changes: other values of other fields.
        """
        work = ((name, getattr(self, name)) for name in WORK_FIELDS)
        return self.having(**{name: change(count) for name, count in work if present(count)}, **changes)

    def moved_bytes(self, place: Place) -> Count:
        """Bytes read and written at `place`."""
        return _moved((*self.reads, *self.writes), place)

    @cached_property
    def traffic_bytes(self) -> Count:
        """Device-memory traffic [byte]."""
        return self.moved_bytes(Place.DEVICE)

    @cached_property
    def weight_dtype(self) -> Dtype:
        """Number format of the first weight that it reads; StopIteration where it reads none."""
        return next(a.tensor.dtype for a in self.reads if a.tensor.role is Role.WEIGHT)

    def read_bytes(self, *roles: Role) -> Count:
        """Device-memory bytes read from tensors with these roles."""
        return self._bytes_of("reads", roles)

    def write_bytes(self, role: Role) -> Count:
        """Device-memory bytes written to tensors with `role`."""
        return self._bytes_of("writes", (role,))

    def _bytes_of(self, field: str, roles: tuple[Role, ...]) -> Count:
        known, key = self._derived, (field, roles)
        if key not in known:
            known[key] = _moved(tuple(a for a in getattr(self, field) if a.tensor.role in roles), Place.DEVICE)
        return known[key]

    @cached_property
    def _derived(self) -> dict[tuple[str, tuple[Role, ...]], Count]:
        return {}


#: Fields of Operator, and those that count work.
FIELDS = dict.fromkeys(entry.name for entry in fields(Operator)).keys()
WORK_FIELDS = tuple(entry.name for entry in fields(Operator) if "work" in entry.metadata)


def summed_work(operators: Iterable[Operator]) -> dict[str, Any]:
    """Total work of several operators, by field of Operator."""
    listed = tuple(operators)
    return {name: total(getattr(operator, name) for operator in listed) for name in WORK_FIELDS}


def _moved(accesses: tuple[Access, ...], place: Place) -> Count:
    """Bytes of the accesses at `place`; elements are summed per number format first, then scaled."""
    elements: dict[float, Count] = {}
    for tensor, count in ((access.tensor, access.elements) for access in accesses):
        if tensor.place is place:
            bits = tensor.dtype.bits
            elements[bits] = elements[bits] + count if bits in elements else count
    return total(count * (bits / 8.0) for bits, count in elements.items())


@frozen(eq=False)
class State:
    """The cache of one layer per sequence: KV cache or recurrent state.

    per_token elements for each of the last `window` tokens, plus per_sequence elements at any context length.
    of_input: its tokens are those of an encoder's input, whose number stays (cross attention).
    """

    name: str
    dtype: Dtype
    per_token: float = 0.0
    per_sequence: float = 0.0
    window: float = np.inf
    place: Place = Place.DEVICE
    of_input: bool = False

    def resident_bytes(self, context: Count) -> Count:
        """Bytes stored for one sequence of `context` tokens."""
        return self.bytes_of(context if self.window == np.inf else np.minimum(context, self.window))

    def bytes_of(self, tokens: Count) -> Count:
        """Bytes for `tokens` tokens of one sequence, without regard to the window."""
        return (self.per_token * tokens + self.per_sequence) * self.dtype.bytes


@frozen(eq=False)
class Block:
    """Operators that run one after another, repeated for `repeats` layers with different weights.

    scope: blocks with the same scope share tensors of the same name (a tied head reads the embedding's table).
    numbers: layer numbers in the model; empty: the first `repeats`.  copies: stored weights named TIED for all layers.
    where: 1.0 for forward passes that run it (an encoder runs in prefill only); `running.ran` makes the others zero.
    """

    name: str
    operators: tuple[Operator, ...]
    repeats: int = 1
    states: tuple[State, ...] = ()
    scope: str = ""
    numbers: tuple[int, ...] = ()
    copies: int = 1
    where: Count = 1.0

    @property
    def is_layer(self) -> bool:
        """Whether this is a kind of decoder layer, not the embedding, the head or a block added by a graph pass."""
        return self.scope != MODEL_SCOPE

    def weights(self) -> dict[str, Tensor]:
        """The stored weights by name, each once."""
        accesses = (a for op in self.operators for a in op.reads)
        return {a.tensor.name: a.tensor for a in accesses if a.tensor.role is Role.WEIGHT}


@frozen(eq=False)
class Graph:
    """One forward pass of one device: blocks in order."""

    blocks: tuple[Block, ...]

    def __iter__(self) -> Iterator[tuple[Block, Operator]]:
        for block in self.blocks:
            for operator in block.operators:
                yield block, operator

    def map_blocks(self, change: Callable[[Block], Block]) -> Graph:
        """A copy of the graph with `change` applied to every block."""
        return replace(self, blocks=tuple(change(block) for block in self.blocks))

    def stored_weights(self) -> Iterator[tuple[Tensor, int]]:
        """Every stored weight with the number of layers that store one like it; a tied table once."""
        seen: dict[tuple[str, str], tuple[Tensor, int]] = {}
        for block, (name, tensor) in ((each, item) for each in self.blocks for item in each.weights().items()):
            times = min(block.repeats, block.copies) if name.startswith(TIED) else block.repeats
            seen.setdefault((block.scope or block.name, name), (tensor, times))
        yield from seen.values()


Pass: TypeAlias = Callable[[Graph], Graph]


def as_built(graph: Graph) -> Graph:
    """The graph pass that changes nothing."""
    return graph


def check(graph: Graph) -> None:
    """Raise AssertionError if an operator reads an activation that no earlier operator of its block has written.

    Exceptions: `tokens`, `hidden` (a block's input), and what an earlier block makes for all later ones.
    """
    for block in graph.blocks:
        known = {"hidden", "tokens", "per_layer_inputs", "encoder_output", "conditioning"}
        for operator in block.operators:
            for tensor in (access.tensor for access in operator.reads):
                is_known = tensor.role is not Role.ACTIVATION or tensor.name in known
                assert is_known, (block.name, operator.name, tensor.name)
            known.update(a.tensor.name for a in operator.writes)
