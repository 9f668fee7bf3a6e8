"""Linear layers in other formats: stored weights, low-bit inputs, the class of the product, the work of converting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype, operand_class
from llmviewer.core.ir import Access, Block, Operator, Role, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.ops.gemm import GemmShape

#: Per element quantized: compare for the largest magnitude, multiply by the scale, round.
QUANTIZE_FLOPS = 3.0
#: Per weight brought to the format of the product: multiply by the scale, convert.
DEQUANTIZE_FLOPS = 2.0
#: Rows of an output tile; every tile converts the weights it reads anew.
TILE_ROWS = 128.0
#: Products that engines keep in the model's 16-bit dtype.
UNQUANTIZED = frozenset(
    "router shared_gate attn_predictor_in attn_predictor_out mlp_predictor_in mlp_predictor_out".split()
)
#: Endings of the products of adapters, which stay in 16 bit beside whatever they adapt.
ADAPTER_SUFFIXES = ("_lora_a", "_lora_b")
#: Ending of the operators that make low-bit inputs, and of what they write.
QUANTIZE_SUFFIX = "_quantize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a linear layer stores its weights and takes its inputs; None leaves them as they are.

    16 bits stand for the model's own 16-bit dtype.
    """

    weights: Dtype | None = None
    activations: Dtype | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeShape:
    """The role of the operator whose output is quantized."""

    source: OperatorRole


@dataclass(frozen=True, slots=True, eq=False)
class _Linear:
    """A linear operator that reads its inputs as they were made, and the low-bit dtype in which it wants them."""

    operator: Operator
    low: Dtype | None

    @property
    def inputs(self) -> tuple[Access, ...]:
        return tuple(access for access in self.operator.reads if access.tensor.role is not Role.WEIGHT)

    @property
    def plain(self) -> Dtype:
        """The dtype of its inputs (a cached latent is converted to it when read)."""
        dtypes = [a.tensor.dtype for a in self.inputs if a.tensor.role is Role.ACTIVATION]
        return dtypes[0] if dtypes else self.inputs[0].tensor.dtype


_Low: TypeAlias = dict[tuple[str, Dtype], Tensor]


def is_linear(operator: Operator) -> bool:
    """Whether the operator multiplies by a stored matrix that may be quantized."""
    kept = operator.name in UNQUANTIZED or operator.name.endswith(ADAPTER_SUFFIXES)
    return operator.kind is Kind.GEMM and isinstance(operator.shape, GemmShape) and not kept


def is_quantize(operator: Operator) -> bool:
    """Whether the operator makes a low-bit input."""
    return operator.kind is Kind.ELEMENTWISE and operator.role is OperatorRole.QUANTIZE


def with_formats(block: Block, format_of: Callable[[Operator], Format]) -> Block:
    """The block with every linear layer in the format that `format_of` gives it.

    Low-bit inputs are made once per tensor and dtype by a `quantize` operator that all readers share.  Those of an
    earlier format that nobody wants any more go.
    """
    made = {op.output.name: op.reads[0].tensor for op in block.operators if is_quantize(op)}
    linears = {op.name: _formatted(_restored(op, made), format_of(op)) for op in block.operators if is_linear(op)}
    low = _low_inputs(linears.values())
    roles = {op.output.name: op.role for op in block.operators}
    operators: dict[str, Operator] = {}
    for operator in block.operators:
        if operator.name in linears:
            linear = linears[operator.name]
            operators |= {op.name: op for op in _makers(linear, low, roles) if op.name not in operators}
            operators[operator.name] = _reading(linear, low)
        elif operator.output.name not in made:
            operators[operator.name] = operator
    return replace(block, operators=tuple(operators.values()))


def _restored(operator: Operator, made: Mapping[str, Tensor]) -> _Linear:
    """The operator as if no quantize operator stood before it.  made: low-bit tensor -> what it was made of."""
    low = next((a.tensor.dtype for a in operator.reads if a.tensor.name in made), None)
    if low is None:
        return _Linear(operator, None)
    reads = tuple(Access(made.get(a.tensor.name, a.tensor), a.elements) for a in operator.reads)
    return _Linear(replace(operator, reads=reads), low)


def _formatted(linear: _Linear, wanted: Format) -> _Linear:
    """Weights in their new dtype, the class of the product, the work of bringing the weights to it."""
    operator, plain = linear.operator, linear.plain
    before = weight_access(operator).tensor.dtype
    low, stored = linear.low, before
    if wanted.activations is not None:
        low = wanted.activations if wanted.activations.bits < plain.bits else None
    if wanted.weights is not None:
        stored = plain if wanted.weights.bits == plain.bits else wanted.weights
    if (low, stored) == (linear.low, before):
        return linear
    reads = tuple(in_dtype(a, stored) if is_weight_matrix(a) else a for a in operator.reads)
    changed = replace(operator, reads=reads, compute=operand_class(low or plain, stored))
    work = _sum(operator.vector_flops, conversion(operator), -1.0)
    return _Linear(replace(changed, vector_flops=_sum(work, conversion(changed), 1.0)), low)


def is_weight_matrix(access: Access) -> bool:
    """Whether it is the matrix of a linear layer that is read, not its bias."""
    return access.tensor.role is Role.WEIGHT and access.tensor.name.endswith(".weight")


def weight_access(operator: Operator) -> Access:
    """What a linear operator reads of its matrix."""
    return next(access for access in operator.reads if is_weight_matrix(access))


def in_dtype(access: Access, dtype: Dtype) -> Access:
    """The same elements of the same tensor, stored in `dtype`."""
    return Access(replace(access.tensor, dtype=dtype), access.elements)


def _sum(work: Count, more: Count | None, sign: float) -> Count:
    """A plain zero stays a plain zero: it says that there is no such work."""
    return work if more is None else work + sign * more


def conversion(operator: Operator) -> Count | None:
    """Vector FLOP for weights stored below the format they are multiplied in: 2 per weight and tile of 128 rows.

    Rows of one expert: those of all experts over the experts that are read.
    """
    shape, read = operator.shape, weight_access(operator)
    assert isinstance(shape, GemmShape)
    if read.tensor.dtype.bits >= 16.0 or read.tensor.dtype.compute == operator.compute:
        return None
    return np.ceil(shape.m / shape.active / TILE_ROWS) * (read.elements * DEQUANTIZE_FLOPS)


def _low_inputs(linears: Iterable[_Linear]) -> _Low:
    """The low-bit tensor of every (input, dtype), as large as its largest reader needs."""
    found: _Low = {}
    for linear in linears:
        if linear.low is None:
            continue
        for access in linear.inputs:
            source = access.tensor.name
            other = "" if all(name != source for name, _ in found) else f"_{linear.low.name}"
            new = Tensor(name=f"{source}{other}{QUANTIZE_SUFFIX}", elements=access.elements, dtype=linear.low)
            same = found.setdefault((source, linear.low), new)
            if same is not new:
                elements = np.maximum(same.elements, access.elements)
                found[source, linear.low] = replace(same, elements=elements)
    return found


def _makers(linear: _Linear, low: _Low, roles: Mapping[str, OperatorRole]) -> Iterator[Operator]:
    """The operators that make its low-bit inputs."""
    if linear.low is None:
        return
    assert isinstance(linear.operator.shape, GemmShape)
    width = linear.operator.shape.k
    for access in linear.inputs:
        y = low[access.tensor.name, linear.low]
        yield Operator(
            name=y.name,
            kind=Kind.ELEMENTWISE,
            role=OperatorRole.QUANTIZE,
            reads=(Access(access.tensor, y.elements),),
            writes=(whole(y),),
            output_shape=(y.elements / width, width),
            vector_flops=y.elements * QUANTIZE_FLOPS,
            shape=QuantizeShape(source=roles.get(access.tensor.name, OperatorRole.OTHER)),
        )


def _reading(linear: _Linear, low: _Low) -> Operator:
    """The operator with its low-bit inputs in the place of the others."""
    dtype = linear.low
    if dtype is None:
        return linear.operator
    reads = tuple(
        a if a.tensor.role is Role.WEIGHT else Access(low[a.tensor.name, dtype], a.elements)
        for a in linear.operator.reads
    )
    return replace(linear.operator, reads=reads)
