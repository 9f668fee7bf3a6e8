"""Operators for rows of measured GEMMs: number formats, and weights that stay in L2 between calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.rows import tuned
from llmviewer.calibrate.rows.table import Table, divided
from llmviewer.core import dtypes
from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Block, Graph, Operator, Tensor
from llmviewer.formats.linear import Format, weight_access, with_formats
from llmviewer.hardware.chip import Chip
from llmviewer.ops.gemm import ADAPTER_PARTS, GemmShape, Linear
from llmviewer.techniques.compression.prune import two_of_four
from llmviewer.timing.kernels.power import PARTITIONED

if TYPE_CHECKING:
    import pandas as pd

#: One scale per 128 x 128 weights, and one per 128 input elements (DeepSeek-V3, arXiv 2412.19437).
FP8_BLOCK = (
    dtypes.scaled("fp8", 8, group=128.0 * 128.0, scale_bits=32, name="fp8-128x128"),
    dtypes.scaled("fp8", 8, group=128.0, scale_bits=32, name="fp8-1x128"),
)
#: OCP Microscaling v1.0: 32 elements share one 8-bit scale.
MXFP8 = dtypes.scaled("fp8", 8, group=32.0, scale_bits=8.0, name="mxfp8")
#: aiconfigurator's name of SmoothQuant: 8-bit integers on both sides, quantized before the timed kernel.
SMOOTH_QUANT = "sq"
#: Column `dtype` -> formats of weights and inputs of products and experts; `_wo`: aiconfigurator's, with 16-bit inputs.
SHARED_FORMATS = {
    "fp8_block": Format(weights=FP8_BLOCK[0], activations=FP8_BLOCK[1]),
    "mxfp8": Format(weights=MXFP8, activations=MXFP8),
    "int8_wo": Format(weights=dtypes.get_dtype("int8")),
    "int4_wo": Format(weights=dtypes.grouped_int(4)),
}
#: Those of products alone with them; other names are dtypes of both.
FORMATS = {
    SMOOTH_QUANT: Format(weights=dtypes.get_dtype("int8"), activations=dtypes.get_dtype("int8")),
    **SHARED_FORMATS,
}
#: Most copies of a linear layer that aiconfigurator runs in turn, by engine; TensorRT-LLM's fill the L2 only once, and
#: vLLM's block-scaled and nvfp4 products run on one copy; SGLang's copies have inputs of their own
#: (https://github.com/ai-dynamo/aiconfigurator, collector/*/collect_gemm.py).
COPIES = {"trtllm": 5.0, "sglang": 6.0, "vllm": 6.0, tuned.NAME: tuned.COPIES}
DEFAULT_COPIES = 5.0
SINGLE_COPY = frozenset((("vllm", "fp8_block"), ("vllm", "nvfp4")))
OWN_INPUTS, FILL_ONCE = frozenset(("sglang", tuned.NAME)), frozenset(("trtllm",))
#: Over the L2's capacity: what is used in turn stays in it up to the first figure, and nothing beyond the second.
RESIDENT_UP_TO, EVICTED_FROM = 1.0, 1.2
#: Largest share of a tensor that is found in the L2: hashed addresses collide.
MOST_RESIDENT = 0.99
#: Tick of the time stamps of an A100 [us].  Rows that are all whole ticks were timed launch by launch, stamps included:
#: the shortest take 7 to 9 us, those of CUDA graphs 2.5 to 3 us.
STAMP_TICK_US = 1.024
#: Largest distance of a time of whole ticks from them, over a tick.
TICK_ERROR = 2e-3
#: dtype of rows with one scale per row of the input and per column of the output.
FP8_ROWS = "fp8_rows"
#: dtype of rows that another kernel of torch runs than that of their variant -> suffix of the engine.
OTHER_KERNELS = {FP8_ROWS: "rows", "mxfp8": "mx"}
#: Column `op` of products of rows of several adapters, each with its own factor.
ADAPTER_OP = "adapters"
#: End of the dtype of rows whose weights are 2:4 sparse.
SPARSE = "_2of4"


def _gemm(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Operators of one linear layer, or of `active` of `experts` experts.

    Timings of 8-bit rows by others include the input conversion, which is one of the GEMM's constants; ours where the
    column `converts` says so.
    """
    m, n, k = (group[name].to_numpy(dtype=np.float64) for name in "mnk")
    narrow = _narrow_format(first)
    wide = dtypes.get_dtype("bf16") if narrow else _plain_dtype(_plain_name(first))
    x = Tensor(name="x", elements=m * k, dtype=wide)
    experts = float(_column_or(first, "experts", 1.0))
    active = group["active"].to_numpy(dtype=np.float64) if experts > 1.0 else 1.0
    name = f"gemm{ADAPTER_PARTS[0]}" if first.get("op") == ADAPTER_OP else "gemm"
    linear = Linear(name=name, in_features=k, out_features=n, dtype=wide, experts=experts)  # type: ignore[arg-type]
    block = Block(name="row", operators=(linear.operator(x, m, active=active),))
    if narrow is not None:
        block = with_formats(block, lambda _: narrow)
    if str(first["dtype"]).endswith(SPARSE):
        block = two_of_four(chip)(Graph(blocks=(block,))).blocks[0]
    product = block.operators[-1]
    assert isinstance(product.shape, GemmShape)
    source = str(first.get("source", ""))
    quantizes = narrow is not None and narrow.activations is not None and str(first["dtype"]) != SMOOTH_QUANT
    if quantizes and (source not in ("llmviewer", tuned.NAME) or _column_or(first, "converts", 0.0)):
        product = replace(product, shape=replace(product.shape, converts=1.0))
    if source != "llmviewer" and _in_whole_ticks(group):
        product = replace(product, shape=replace(product.shape, stamped=1.0))  # type: ignore[type-var]
    return (_with_resident_tensors(product, chip, first) if source in ("aiconfigurator", tuned.NAME) else product,)


def _in_whole_ticks(group: pd.DataFrame) -> bool:
    ticks = group["latency_us"].to_numpy(dtype=np.float64) / STAMP_TICK_US
    return bool(np.all(np.abs(ticks - np.round(ticks)) < TICK_ERROR))


def _with_resident_tensors(product: Operator, chip: Chip, first: Any) -> Operator:
    """The GEMM with its weights, inputs and outputs in L2 as far as they stay there until they are used again."""
    shape = product.shape
    if chip.l2_bytes is None or not isinstance(shape, GemmShape):
        return product
    engine = tuned.NAME if first["source"] == tuned.NAME else str(first["engine"]).partition(" ")[0].lower()
    capacity = chip.l2_bytes * (0.5 if chip.generation in PARTITIONED else 1.0)
    weights = weight_access(product)
    matrix = weights.elements * weights.tensor.dtype.bytes
    inputs, outputs = 2.0 * shape.m * shape.k, 2.0 * shape.m * shape.n
    copies = _copies(engine, str(first["dtype"]), matrix, chip.l2_bytes)
    own = engine in OWN_INPUTS
    kept = _resident_share((copies * matrix + (copies if own else 1.0) * inputs + outputs) / capacity)
    written = _resident_share((matrix + inputs + outputs) / capacity)
    read = kept if own else written
    reads = [part for a in product.reads for part in divided(a, kept if a is weights else read)]
    writes = [part for a in product.writes for part in divided(a, written)]
    return replace(product, reads=tuple(reads), writes=tuple(writes))


def _copies(engine: str, dtype: str, matrix: Count, l2_bytes: Count) -> Count:
    """Copies of a layer whose weights have `matrix` bytes that run in turn."""
    if (engine, dtype) in SINGLE_COPY:
        return 1.0
    most = COPIES.get(engine, DEFAULT_COPIES)
    return np.clip(np.ceil(l2_bytes / matrix), 1.0, most) if engine in FILL_ONCE else most


def _resident_share(used: Count) -> Count:
    """Share of a tensor that is still in the L2; used: bytes used in turn over the capacity."""
    return np.clip((EVICTED_FROM - used) / (EVICTED_FROM - RESIDENT_UP_TO), 0.0, MOST_RESIDENT)


def _plain_name(first: Any) -> str:
    """dtype of a row without what its kernel adds: sparsity, scales of rows."""
    name = str(first["dtype"]).removesuffix(SPARSE)
    return "fp8" if name == FP8_ROWS else name


def _column_or(first: Any, name: str, default: float) -> float:
    """Value of an optional column, or `default` if it is absent or empty."""
    value = float(first.get(name, np.nan))
    return value if np.isfinite(value) else default


def _plain_dtype(dtype: str) -> Dtype:
    """Dtype of a GEMM without input conversion; tf32 values are stored in 32 bits."""
    return Dtype(name="tf32", bits=32, compute="tf32") if dtype == "tf32" else dtypes.get_dtype(dtype)


def _narrow_format(first: Any) -> Format | None:
    dtype = _plain_name(first)
    if dtype in FORMATS:
        return FORMATS[dtype]
    if dtype == "w4a16":
        group = _column_or(first, "group", 0.0)
        if group < 1.0:
            raise UserError("rows of w4a16 without `group`, the number of weights per scale")
        return Format(weights=dtypes.grouped_int(4, group=int(group), zero_point_bits=16.0))
    if dtype == "tf32":
        return None
    named = dtypes.get_dtype(dtype)
    return Format(weights=named, activations=named) if named.bits < 16 else None


def _inactive_experts(rows: pd.DataFrame) -> list[tuple[Any, str]]:
    if "experts" not in rows.columns:
        return []
    active = rows["active"] if "active" in rows.columns else np.nan
    several = rows["experts"] > 1.0
    return [(several & ~(active <= rows["experts"]), "experts without `active`, the number of them that run")]


def _engine(engine: str, first: Any) -> str:
    """The engine; with `-products` for grouped products alone, which lack the sorting and the sum of a layer.

    Products that another kernel runs than that of their variant, and those of several adapters, have suffixes too.
    """
    several = _column_or(first, "experts", 1.0) > 1.0
    grouped = ADAPTER_OP if first.get("op") == ADAPTER_OP else "products" if several else ""
    suffix = OTHER_KERNELS.get(str(first["dtype"]), grouped)
    return f"{engine}-{suffix}" if suffix else engine


GEMM = Table(
    shape=("m", "n", "k"),
    formula=("dtype", "experts", "group", "op", "converts"),
    needed=("dtype",),
    build=_gemm,
    engine=_engine,
    contradictions=_inactive_experts,
)
