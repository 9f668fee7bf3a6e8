"""Measured tables -> operators of ops/, as arrays: one formula for prediction, fit and validation.

Columns are those of docs/calibration.md.  Rows that cannot be predicted are named with a reason, never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrate.products import gemm
from llmviewer import dtypes, hardware
from llmviewer.chip import Chip
from llmviewer.dtypes import Dtype
from llmviewer.errors import UserError
from llmviewer.formats.linear import Format, with_formats
from llmviewer.ir import Array, Block, Operator, Role, Tensor, whole
from llmviewer.ops.attention import AttentionInputs, AttentionShape, flash, rope
from llmviewer.ops.collective import Collective, CollectiveShape, collective
from llmviewer.ops.elementwise import ACTIVATIONS, add, gated
from llmviewer.ops.embedding import embedding
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import rms_norm
from llmviewer.passes.flash_attention import rereads
from llmviewer.workload import chunk, decode

if TYPE_CHECKING:
    import pandas as pd

#: Words that name an engine, at the start of what a table says -> the engine as profiles call it.
ENGINES = {"sglang": "sglang", "trtllm": "trtllm", "tensorrt-llm": "trtllm", "vllm": "vllm", "nccl": "nccl"}
#: Columns that must hold one value in a group: they choose formulas, others are numbers in them.
CHOICES: dict[str, tuple[str, ...]] = {
    "gemm": ("dtype",),
    "attention_prefill": ("dtype", "kv_dtype", "window", "kernel"),
    "attention_decode": ("dtype", "kv_dtype", "window", "kernel"),
    "allreduce": ("op", "gpus", "impl"),
    "elementwise": ("op", "dtype"),
}
#: What makes a shape: rows of one shape go to one side of a split together, whoever measured them.
SHAPES: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("batch", "seq", "heads", "kv_heads", "head_dim", "window", "prefix"),
    "attention_decode": ("batch", "context", "heads", "kv_heads", "head_dim", "window"),
    "allreduce": ("op", "gpus", "bytes"),
    "elementwise": ("op", "tokens", "width"),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of a table that one array operator (or a few after each other) describes.

    index: their labels in the table.  measured_s: seconds.
    """

    table: str
    chip: Chip
    engine: str
    operators: tuple[Operator, ...]
    measured_s: Array
    index: Any


def table_of(columns: Any) -> str:
    """Which table has these columns."""
    names = set(columns)
    for table, needed in SHAPES.items():
        if {*needed, "device", "latency_us"} <= names:
            return table
    raise UserError(f"columns {', '.join(map(str, columns))} are those of no measured table; see docs/calibration.md")


def engine_of(text: object) -> str:
    """`trtllm 1.3.0` -> `trtllm`; whoever times PyTorch's own kernels is `torch`."""
    word = str(text).lower()
    return next((name for start, name in ENGINES.items() if word.startswith(start)), "torch")


def _engine_of(table: str, first: Any) -> str:
    """The engine; of collectives those that a host launches one by one, instead of a graph, are kept apart."""
    engine = engine_of(first.get("engine", ""))
    if table != "allreduce":
        return engine
    if str(first.get("source", "")) == "vidur":
        return "vidur-host"
    return f"{engine}-eager" if "eager" in str(first["impl"]) else engine


def rows_of(frame: pd.DataFrame) -> Iterator[Rows]:
    """The rows of a kernel table, group by group.  Raises UserError for a device or dtype nobody knows."""
    table = table_of(frame.columns)
    keys = [name for name in ("device", "source", "engine", *CHOICES[table]) if name in frame.columns]
    for _, group in frame.groupby(keys, dropna=False, sort=True):
        first = group.iloc[0]
        chip = hardware.load(str(first["device"]).replace("_", "-"))
        yield Rows(
            table=table,
            chip=chip,
            engine=_engine_of(table, first),
            operators=BUILDERS[table](group, first, chip),
            measured_s=group["latency_us"].to_numpy(dtype=np.float64) * 1e-6,
            index=group.index,
        )


def _column(group: pd.DataFrame, name: str) -> Array:
    return group[name].to_numpy(dtype=np.float64)


def _attention(group: pd.DataFrame, first: Any, chip: Chip, groups: Any) -> Operator:
    dtype, stored = dtypes.named(first["dtype"]), dtypes.named(first["kv_dtype"])
    heads, kv_heads, head_dim = (_column(group, name) for name in ("heads", "kv_heads", "head_dim"))
    shape = AttentionShape(
        groups=groups,
        heads=heads,  # type: ignore[arg-type]
        kv_heads=kv_heads,
        qk_dim=head_dim,
        v_dim=head_dim,
        window=float(first["window"]) or np.inf,
    )
    q = Tensor(name="q", elements=shape.queries() * heads * head_dim, dtype=dtype)
    kv = shape.keys() * kv_heads * head_dim
    k, v = (Tensor(name=name, elements=kv, dtype=stored, role=Role.CACHE) for name in ("k_cache", "v_cache"))
    inputs = AttentionInputs(q=q, k=(whole(k),), v=(whole(v),))
    return flash(shape, inputs, rereads(shape, inputs, chip), dtype.compute)


def attention_prefill(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Causal attention over a prompt after a cached prefix."""
    step = chunk(_column(group, "batch"), _column(group, "seq"), _column(group, "prefix"))
    return (_attention(group, first, chip, step.groups),)


def attention_decode(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """One new token per sequence against its cache."""
    step = decode(_column(group, "batch"), _column(group, "context") - 1.0)
    return (_attention(group, first, chip, step.groups),)


PATTERNS = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "send_recv": Collective.SEND,
}


def allreduce(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """One collective of 16-bit elements on one node."""
    if first["op"] not in PATTERNS:
        raise UserError(f"unknown collective '{first['op']}'; known: {', '.join(PATTERNS)}")
    size, dtype, devices = _column(group, "bytes"), dtypes.named("bf16"), float(first["gpus"])
    x = Tensor(name="x", elements=size / dtype.bytes, dtype=dtype)
    # an all-to-all was timed faster than the links allow if these were the bytes of all devices together
    whole_bytes = size * devices if first["op"] == "alltoall" else size
    shape = CollectiveShape(pattern=PATTERNS[first["op"]], devices=devices, size_bytes=whole_bytes, near=chip.near)
    return (collective(str(first["op"]), (whole(x),), (whole(x.called("y")),), np.ones(len(group)), shape),)


def elementwise(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """One small operation over tokens x width."""
    op, tokens, width = str(first["op"]), _column(group, "tokens"), _column(group, "width")
    if op not in SMALL:
        raise UserError(f"unknown elementwise op '{op}'; known: {', '.join(SMALL)}")
    dtype = dtypes.named("bf16" if op == "scale_matrix" else first["dtype"])
    x = Tensor(name="x", elements=tokens * width, dtype=dtype)
    return SMALL[op](x, tokens, width, dtype)


Small = Callable[[Tensor, Array, Array, Dtype], tuple[Operator, ...]]


def _norm(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    return (rms_norm("norm", 1.0, dtype, rows=width).operator(x, tokens),)  # type: ignore[arg-type]


def _rope(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    return (rope("rope", (whole(x),), (whole(x.called("rope")),), tokens, width * 0.5),)  # type: ignore[arg-type]


def _act(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    y = x.called("mlp_act")
    return (gated("mlp_act", (whole(x), whole(x.called("up"))), y, tokens, ACTIVATIONS["silu"]),)


def _add(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    return (add("attn_add", x, x.called("y"), tokens),)


def _embedding(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    table = Tensor(name="table", elements=32000.0 * width, dtype=dtype, role=Role.WEIGHT)
    return (embedding("embedding", (table,), x, tokens),)


def _quantize(x: Tensor, tokens: Array, width: Array, dtype: Dtype) -> tuple[Operator, ...]:
    fp8 = dtypes.named("fp8")
    linear = Linear(name="gemm", in_features=width, out_features=1.0, dtype=dtype)  # type: ignore[arg-type]
    block = Block(name="row", operators=(linear.operator(x, tokens),))
    made = with_formats(block, lambda _: Format(weights=fp8, activations=fp8)).operators
    return made[:1]


SMALL: dict[str, Small] = {
    "input_layernorm": _norm,
    "post_attention_layernorm": _norm,
    "attn_rope": _rope,
    "mlp_act": _act,
    "add": _add,
    "emb": _embedding,
    "scale_matrix": _quantize,
}
BUILDERS: dict[str, Callable[[pd.DataFrame, Any, Chip], tuple[Operator, ...]]] = {
    "gemm": gemm,
    "attention_prefill": attention_prefill,
    "attention_decode": attention_decode,
    "allreduce": allreduce,
    "elementwise": elementwise,
}
