"""Predictors of the heads and feed-forward columns that a token uses."""

from __future__ import annotations

from llmviewer.core.ir import Block, Operator
from llmviewer.formats.linear import is_quantize
from llmviewer.ops.gemm import Linear


def predictor(part: str, block: Block, operator: Operator, outputs: float, width: float) -> tuple[Operator, ...]:
    """Two linear layers without biases before `operator`: hidden -> width -> one score per head or column.

    They read the input of `operator` before quantization.  part: prefix of their names.  Empty if width is 0.  Under
    tensor parallelism every device runs the whole first layer, and scores its own heads or columns:
    https://github.com/FMInference/DejaVu/blob/master/Dejavu/src/ops/fused_dense_sparse_dejavu.py (ParallelSP).
    """
    if not width:
        return ()
    unquantized = {op.output.name: op.reads[0] for op in block.operators if is_quantize(op)}
    first = operator.reads[0]
    x, tokens = unquantized.get(first.tensor.name, first).tensor, operator.output_shape[0]
    hidden = operator.shape.k  # type: ignore[attr-defined]
    into = Linear(name=f"{part}_predictor_in", in_features=hidden, out_features=width, dtype=x.dtype)
    scores = Linear(name=f"{part}_predictor_out", in_features=width, out_features=outputs, dtype=x.dtype)
    inner = into.operator(x, tokens)
    return (inner, scores.operator(inner.output, tokens))
