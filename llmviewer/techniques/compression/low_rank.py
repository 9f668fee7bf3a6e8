"""`--low-rank`: linear layers factored into products of two thin matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype, operand_class
from llmviewer.core.ir import Access, Block, Operator, Pass, Role, Tensor, whole
from llmviewer.core.kinds import OperatorRole
from llmviewer.formats.linear import conversion, is_linear, is_weight_matrix, weight_access
from llmviewer.ops.gemm import GemmShape
from llmviewer.techniques.technique import Change, Whole, add_pass, technique


def low_rank(rank: float) -> Pass:
    """Replace W[n, k] by B[n, r] A[r, k]: two products, k -> r -> n, instead of one.

    FLOPs 2 tokens r (n + k), weights r (n + k), if that is less than n k; a bias is added after B.  Factors are stored
    in the format of W; the tensor between them has 16 bits.  Linear layers of all layers and every expert; not the
    router, embeddings, lm_head, nor kv_b_proj of latent attention.  Source: LoRD arXiv 2309.14021, ASVD 2312.05821.
    Counts only: says nothing about the rank at which a model keeps its quality.
    """

    def change(block: Block) -> Block:
        if not block.is_layer:
            return block
        plain = block.operators[0].reads[0].tensor.dtype  # dtype of the residual stream
        operators = (part for op in block.operators for part in _factors(op, rank, plain))
        return replace(block, operators=tuple(operators))

    return lambda graph: graph.map_blocks(change)


def _factors(operator: Operator, rank: float, plain: Dtype) -> tuple[Operator, ...]:
    """The two factors of an operator, or the operator itself if they save nothing."""
    shape = operator.shape
    if not (is_linear(operator) and isinstance(shape, GemmShape)) or operator.role is OperatorRole.LATENT_EXPANSION:
        return (operator,)
    if rank * (shape.n + shape.k) >= shape.n * shape.k:
        return (operator,)
    middle = Tensor(name=f"{operator.name}_low_a", elements=shape.m * rank, dtype=plain)
    inputs = tuple(a for a in operator.reads if a.tensor.role is not Role.WEIGHT)
    biases = tuple(a for a in operator.reads if a.tensor.role is Role.WEIGHT and not is_weight_matrix(a))
    old = conversion(operator)
    first = replace(
        operator,
        name=middle.name,
        role=OperatorRole.OTHER,
        reads=(*inputs, _matrix(operator, "_low_a", rank / shape.n)),
        writes=(whole(middle),),
        output_shape=(operator.output_shape[0], rank),
        matmul_flops=shape.m * (2.0 * shape.k * rank),
        shape=replace(shape, n=rank),
    )
    second = replace(
        operator,
        name=f"{operator.name}_low_b",
        role=OperatorRole.OTHER,
        reads=(whole(middle), _matrix(operator, "_low_b", rank / shape.k), *biases),
        compute=operand_class(plain, weight_access(operator).tensor.dtype),
        matmul_flops=shape.m * (2.0 * shape.n * rank),
        shape=replace(shape, k=rank),
    )
    epilogue = operator.vector_flops if old is None else operator.vector_flops - old
    return _with_conversion(first, 0.0), _with_conversion(second, epilogue)


def _with_conversion(operator: Operator, work: Count) -> Operator:
    """The operator with vector FLOPs of `work` plus those that convert its own weights."""
    more = conversion(operator)
    return replace(operator, vector_flops=work if more is None else work + more)


def _matrix(operator: Operator, ending: str, share: float) -> Access:
    """The access to a factor that has `share` of the elements of the operator's matrix."""
    read = weight_access(operator)
    name = f"{operator.name}{ending}.weight"
    return Access(replace(read.tensor, name=name, elements=read.tensor.elements * share), read.elements * share)


@technique(
    "low_rank",
    kind="compression",
    formula="W[n,k] -> B[n,r] A[r,k]: FLOPs 2 tokens r (n + k), weights r (n + k), where r (n + k) < n k",
    source="LoRD arXiv 2309.14021, ASVD arXiv 2312.05821",
    example="llama-2-7b --hardware a6000 --low-rank 1024",
)
def low_rank_option(rank: Annotated[float, Whole("rank of the two factors", 1, 1e6)]) -> Change:
    """Stores and multiplies linear layers as two thin factors if that is less work."""
    return add_pass(f"low_rank({rank:g})", lambda _: low_rank(rank))
