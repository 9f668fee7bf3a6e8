"""Operators for rows of memory-bound kernels: norms, activations, RoPE, additions, embeddings, conversions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.rows.table import Table, divided
from llmviewer.core import dtypes
from llmviewer.core.counts import Array
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Operator, Role, Tensor, whole
from llmviewer.core.kinds import Kind
from llmviewer.formats.linear import Format, with_formats
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import SOFTMAX_FLOPS, rope
from llmviewer.ops.elementwise import ACTIVATIONS, add, embedding, gated, rms_norm
from llmviewer.ops.gemm import Linear

if TYPE_CHECKING:
    import pandas as pd

#: Largest share of a repeated input that stays in the L2.
MOST_KEPT = 0.99
#: kernel of elementwise rows -> suffix of the engine name.
KERNEL_SUFFIXES = {"compiled": "-compile", "eager": "-unfused"}
#: Kernels that vidur timed in vLLM of early 2024 and that read one element at a time: since V1 generated kernels run in
#: their place, and since 2025-11 they read 16 bytes (https://github.com/vllm-project/vllm/pull/27931 norms, pull/29512
#: activations).  RoPE and sums are as they were.
SUPERSEDED = ("input_layernorm", "post_attention_layernorm", "mlp_act", "emb")


def _elementwise(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Operator of one elementwise kernel over tokens x width.

    A chain of eager torch kernels is one operator too, as in a model's graph: the constants fitted for its engine
    include the cost of the intermediate kernels.
    """
    op = str(first["op"])
    tokens, width = (group[name].to_numpy(dtype=np.float64) for name in ("tokens", "width"))
    if op not in ELEMENTWISE_OPERATORS:
        raise UserError(f"unknown elementwise op '{op}'; known: {', '.join(ELEMENTWISE_OPERATORS)}")
    dtype = dtypes.get_dtype("bf16" if op == "scale_matrix" else first.get("dtype", ""))
    x = Tensor(name="x", elements=tokens * width, dtype=dtype)
    made = ELEMENTWISE_OPERATORS[op](x, tokens, width, dtype)
    return tuple(_left_in_l2(one, chip) for one in made) if first.get("source") == "aiconfigurator" else made


def _left_in_l2(operator: Operator, chip: Chip) -> Operator:
    """The operator with inputs and outputs that stay in the L2 as one input is timed repeatedly: 96 MB of an L40S.

    Up to half the L2 nearly all of them stay, from its full size on none.
    """
    if chip.l2_bytes is None:
        return operator
    share = np.clip(2.0 - 2.0 * operator.traffic_bytes / chip.l2_bytes, 0.0, MOST_KEPT)

    def placed(accesses: tuple[Access, ...]) -> tuple[Access, ...]:
        return tuple(part for access in accesses for part in divided(access, share))

    return replace(operator, reads=placed(operator.reads), writes=placed(operator.writes))


BuildOperators = Callable[[Tensor, Array, Array, Dtype], tuple[Operator, ...]]


def _norm(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    return (rms_norm("norm", 1.0, dtype, rows=width).operator(x, tokens),)  # type: ignore[arg-type]


def _rope(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    return (rope("rope", (whole(x),), (whole(x.called("rope")),), tokens, width * 0.5),)  # type: ignore[arg-type]


def _act(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    y = x.called("mlp_act")
    return (gated("mlp_act", (whole(x), whole(x.called("up"))), y, tokens, ACTIVATIONS["silu"]),)


def _add(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    return (add("attn_add", x, x.called("y"), tokens),)


def _softmax(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    """Softmax over rows of `width`, as between the two GEMMs of eager attention."""
    return (
        Operator(
            name="softmax",
            kind=Kind.SOFTMAX,
            reads=(whole(x),),
            writes=(whole(x.called("softmax")),),
            output_shape=(tokens, width),
            vector_flops=x.elements * SOFTMAX_FLOPS,
            special_ops=x.elements,
        ),
    )


def _embedding(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    table = Tensor(name="table", elements=32000.0 * width, dtype=dtype, role=Role.WEIGHT)
    return (embedding("embedding", (table,), x, tokens),)


def _cache_write(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    """New keys and values that one kernel copies to the cache, as in techniques/kernels/of_engine.py."""
    new = Tensor(name="new", elements=x.elements, dtype=dtypes.get_dtype("bf16"))
    cache = Tensor(name="cache", elements=x.elements, dtype=dtype, role=Role.CACHE)
    made = Operator(name="cache_write", kind=Kind.ELEMENTWISE, reads=(whole(new),), writes=(whole(cache),),
                    output_shape=(tokens, width))  # fmt: skip
    return (made,)


def _quantize(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    fp8 = dtypes.get_dtype("fp8")
    linear = Linear(name="gemm", in_features=width, out_features=1.0, dtype=dtype)  # type: ignore[arg-type]
    block = Block(name="row", operators=(linear.operator(x, tokens),))
    made = with_formats(block, lambda _: Format(weights=fp8, activations=fp8)).operators
    return made[:1]


ELEMENTWISE_OPERATORS: dict[str, BuildOperators] = {
    "input_layernorm": _norm,
    "post_attention_layernorm": _norm,
    "attn_rope": _rope,
    "mlp_act": _act,
    "add": _add,
    "softmax": _softmax,
    "emb": _embedding,
    "scale_matrix": _quantize,
    "cache_write": _cache_write,
}


def _engine(engine: str, first: Any) -> str:
    """The engine; chains of eager kernels are `-unfused`, so that others use a fused kernel where one was measured.

    SUPERSEDED kernels of vLLM are `-v0`, which serve that engine alone; those timed here, which it runs only where it
    compiles nothing (`--enforce-eager`), are `-custom`.
    """
    if str(first["op"]) == "cache_write":  # priced like a sum, which its rows must not describe
        return engine + "-cache"
    superseded = str(first["op"]) in SUPERSEDED
    if str(first.get("source", "")) == "vidur" and superseded:
        return engine + "-v0"
    if str(first.get("source", "")) == "llmviewer" and superseded and engine == "vllm":
        return engine + "-custom"
    return engine + KERNEL_SUFFIXES.get(str(first.get("kernel", "")), "")


ELEMENTWISE = Table(
    shape=("op", "tokens", "width"),
    formula=("op", "dtype", "kernel"),
    needed=("op",),
    build=_elementwise,
    words=("op",),
    engine=_engine,
)
