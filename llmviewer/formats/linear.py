"""Linear layers in other number formats: stored weights, low-bit inputs, compute class, and conversion work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype, operand_class
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Operator, Role, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.ops.gemm import GemmShape

#: Per quantized element: comparison for the largest magnitude, multiplication by the scale, rounding.
QUANTIZE_FLOPS = 3.0
#: Per weight converted to the format of the product: multiplication by the scale, conversion.
DEQUANTIZE_FLOPS = 2.0
#: Rows of an output tile; every tile converts again the weights that it reads.
TILE_ROWS = 128.0
#: Linear layers that engines keep in the model's 16-bit dtype.
UNQUANTIZED = frozenset(
    "router shared_gate attn_predictor_in attn_predictor_out mlp_predictor_in mlp_predictor_out "
    "attn_hc_proj mlp_hc_proj head_hc_proj".split()
)
#: Suffixes of adapters' linear layers, which stay in 16 bit when the base weights are quantized.
ADAPTER_SUFFIXES = ("_lora_a", "_lora_b")
#: Suffix of operators that quantize inputs, and of the tensors that they write.
QUANTIZE_SUFFIX = "_quantize"


@frozen
class Format:
    """Number formats of a linear layer's weights and inputs; None leaves them unchanged.

    16 bits mean the model's own 16-bit dtype.
    """

    weights: Dtype | None = None
    activations: Dtype | None = None


@frozen
class QuantizeShape:
    """Shape of a quantize operator.  source: role of the operator whose output it quantizes."""

    source: OperatorRole


@frozen(kw_only=False, eq=False)
class _Linear:
    """A linear operator that reads unquantized inputs, and the dtype to quantize them to (None: not quantized)."""

    operator: Operator
    input_dtype: Dtype | None

    @property
    def inputs(self) -> tuple[Access, ...]:
        return tuple(access for access in self.operator.reads if access.tensor.role is not Role.WEIGHT)

    @property
    def plain(self) -> Dtype:
        """The dtype of its unquantized inputs (a cached latent is converted to it when read)."""
        dtypes = [a.tensor.dtype for a in self.inputs if a.tensor.role is Role.ACTIVATION]
        return dtypes[0] if dtypes else self.inputs[0].tensor.dtype


_QuantizedTensors: TypeAlias = dict[tuple[str, Dtype], Tensor]


def is_linear(operator: Operator) -> bool:
    """Whether the operator is a linear layer whose weights may be quantized."""
    unquantized = operator.name in UNQUANTIZED or operator.name.endswith(ADAPTER_SUFFIXES)
    return operator.kind is Kind.GEMM and isinstance(operator.shape, GemmShape) and not unquantized


def is_quantize(operator: Operator) -> bool:
    """Whether the operator quantizes an input of linear layers."""
    return operator.kind is Kind.ELEMENTWISE and operator.role is OperatorRole.QUANTIZE


def with_formats(block: Block, format_of: Callable[[Operator], Format]) -> Block:
    """The block with every linear layer in the format that `format_of` returns.

    Each input is quantized once per tensor and dtype, by a `quantize` operator that its readers share.  Quantize
    operators of an earlier format that are no longer read are removed.
    """
    sources = {op.output.name: op.reads[0].tensor for op in block.operators if is_quantize(op)}
    linears = {
        op.name: _in_format(_with_source_inputs(op, sources), format_of(op)) for op in block.operators if is_linear(op)
    }
    quantized = _quantized_tensors(linears.values())
    roles = {op.output.name: op.role for op in block.operators}
    operators: dict[str, Operator] = {}
    for operator in block.operators:
        if operator.name in linears:
            linear = linears[operator.name]
            operators |= {
                op.name: op for op in _quantize_operators(linear, quantized, roles) if op.name not in operators
            }
            operators[operator.name] = _with_quantized_inputs(linear, quantized)
        elif operator.output.name not in sources:
            operators[operator.name] = operator
    return replace(block, operators=tuple(operators.values()))


def _with_source_inputs(operator: Operator, sources: Mapping[str, Tensor]) -> _Linear:
    """The operator with unquantized inputs.  sources: name of a quantized tensor -> its source."""
    input_dtype = next((a.tensor.dtype for a in operator.reads if a.tensor.name in sources), None)
    if input_dtype is None:
        return _Linear(operator, None)
    reads = tuple(Access(sources.get(a.tensor.name, a.tensor), a.elements) for a in operator.reads)
    return _Linear(operator.having(reads=reads), input_dtype)


def _in_format(linear: _Linear, wanted: Format) -> _Linear:
    """The linear layer in the format `wanted`: dtypes of weights and inputs, compute class and conversion work."""
    operator, plain = linear.operator, linear.plain
    before = weight_access(operator).tensor.dtype
    input_dtype, stored = linear.input_dtype, before
    if wanted.activations is not None:
        input_dtype = wanted.activations if wanted.activations.bits < plain.bits else None
    if wanted.weights is not None:
        stored = plain if wanted.weights.bits == plain.bits else wanted.weights
    if (input_dtype, stored) == (linear.input_dtype, before):
        return linear
    reads = tuple(in_dtype(a, stored) if is_weight_matrix(a) else a for a in operator.reads)
    changed = operator.having(reads=reads, compute=operand_class(input_dtype or plain, stored))
    work = _sum(operator.vector_flops, conversion(operator), -1.0)
    return _Linear(changed.having(vector_flops=_sum(work, conversion(changed), 1.0)), input_dtype)


def is_weight_matrix(access: Access) -> bool:
    """Whether the access reads the matrix of a linear layer, not its bias."""
    return access.tensor.role is Role.WEIGHT and access.tensor.name.endswith(".weight")


def weight_access(operator: Operator) -> Access:
    """The access of a linear operator to its weight matrix."""
    return next(access for access in operator.reads if is_weight_matrix(access))


def in_dtype(access: Access, dtype: Dtype) -> Access:
    """A copy of the access with the tensor stored in `dtype`."""
    return Access(access.tensor.stored_as(dtype), access.elements)


def _sum(work: Count, more: Count | None, sign: float) -> Count:
    """work + sign * more; unchanged if `more` is None, so that a plain zero (no work) stays a plain zero."""
    return work if more is None else work + sign * more


def conversion(operator: Operator) -> Count | None:
    """Vector FLOP to convert weights to the format of the product: 2 per weight and tile of 128 rows.

    None if no conversion is needed.  Rows per expert: the rows of all experts divided by the active experts.
    """
    shape, read = operator.shape, weight_access(operator)
    assert isinstance(shape, GemmShape)
    if read.tensor.dtype.bits >= 16.0 or read.tensor.dtype.compute == operator.compute:
        return None
    return np.ceil(shape.m / shape.active / TILE_ROWS) * (read.elements * DEQUANTIZE_FLOPS)


def _quantized_tensors(linears: Iterable[_Linear]) -> _QuantizedTensors:
    """The quantized tensor of every (input, dtype), as large as its largest reader needs."""
    found: _QuantizedTensors = {}
    for linear in linears:
        if linear.input_dtype is None:
            continue
        for access in linear.inputs:
            source = access.tensor.name
            dtype_suffix = "" if all(name != source for name, _ in found) else f"_{linear.input_dtype.name}"
            new = Tensor(
                name=f"{source}{dtype_suffix}{QUANTIZE_SUFFIX}", elements=access.elements, dtype=linear.input_dtype
            )
            existing = found.setdefault((source, linear.input_dtype), new)
            if existing is not new:
                elements = np.maximum(existing.elements, access.elements)
                found[source, linear.input_dtype] = replace(existing, elements=elements)
    return found


def _quantize_operators(
    linear: _Linear, quantized: _QuantizedTensors, roles: Mapping[str, OperatorRole]
) -> Iterator[Operator]:
    """The operators that quantize the inputs of a linear layer."""
    if linear.input_dtype is None:
        return
    assert isinstance(linear.operator.shape, GemmShape)
    width = linear.operator.shape.k
    for access in linear.inputs:
        y = quantized[access.tensor.name, linear.input_dtype]
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


def _with_quantized_inputs(linear: _Linear, quantized: _QuantizedTensors) -> Operator:
    """The linear operator, reading quantized inputs if it has a low-bit dtype."""
    dtype = linear.input_dtype
    if dtype is None:
        return linear.operator
    reads = tuple(
        a if a.tensor.role is Role.WEIGHT else Access(quantized[a.tensor.name, dtype], a.elements)
        for a in linear.operator.reads
    )
    return linear.operator.having(reads=reads)
