"""Operators of ops/ for measured tables, as arrays: one formula for prediction, fit and validation.

Columns are those of docs/calibration.md.  Rows that cannot be predicted are reported with a reason, never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.products import gemm
from llmviewer.calibrate.streams import elementwise
from llmviewer.core import dtypes
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Operator, Place, Role, Tensor, whole
from llmviewer.core.workload import chunk, decode
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import AttentionInputs, AttentionShape, flash
from llmviewer.ops.collective import Collective, CollectiveShape, collective
from llmviewer.techniques.kernels.flash_attention import rereads

if TYPE_CHECKING:
    import pandas as pd

#: Prefix of the column `engine` -> engine name in profiles.
ENGINES = {"sglang": "sglang", "trtllm": "trtllm", "tensorrt-llm": "trtllm", "vllm": "vllm", "nccl": "nccl"}
#: Columns that must be constant within a group, since they choose the formula; other columns are its inputs.
FORMULA_COLUMNS: dict[str, tuple[str, ...]] = {
    "gemm": ("dtype", "experts", "group"),
    "attention_prefill": ("dtype", "kv_dtype", "window", "kernel"),
    "attention_decode": ("dtype", "kv_dtype", "window", "kernel"),
    "allreduce": ("op", "gpus", "impl"),
    "elementwise": ("op", "dtype", "kernel"),
}
#: kernel of elementwise rows -> suffix of the engine name.
KERNEL_SUFFIXES = {"compiled": "-compile", "eager": "-unfused"}
#: Prefix of the kernels of scaled_dot_product_attention, and the reason to leave out the slower ones.
SDPA_PREFIX = "sdpa_"
SLOWER_KERNEL = "another attention kernel of torch is faster at the same shape; profiles contain only the fastest"
#: Columns that identify a table -> its optional columns with their defaults.
DEFAULT_COLUMNS: dict[tuple[str, ...], dict[str, str | int]] = {
    ("heads", "seq"): {"kernel": "", "window": 0, "prefix": 0},
    ("heads", "context"): {"kernel": "", "window": 0},
    ("gpus", "bytes"): {"impl": ""},
}
#: Columns of a shape: rows of one shape belong to one cross-validation fold, whatever their source.
SHAPES: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("batch", "seq", "heads", "kv_heads", "head_dim", "window", "prefix"),
    "attention_decode": ("batch", "context", "heads", "kv_heads", "head_dim", "window"),
    "allreduce": ("op", "gpus", "bytes"),
    "elementwise": ("op", "tokens", "width"),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowGroup:
    """Rows of a table described by one array operator, or by a short sequence of them.

    index: labels of the rows in the table.  measured_s: measured times [s].
    """

    table: str
    chip: Chip
    engine: str
    operators: tuple[Operator, ...]
    measured_s: Array
    index: Any


def table_of(columns: Any) -> str:
    """Name of the kernel table with these columns.  Raises UserError if there is none."""
    names = set(columns)
    for table, needed in SHAPES.items():
        if {*needed, "device", "latency_us"} <= names:
            return table
    nearest = min(SHAPES, key=lambda table: len({*SHAPES[table]} - names) / len(SHAPES[table]))
    lacking = ", ".join(name for name in (*SHAPES[nearest], "device", "latency_us") if name not in names)
    if not names & {*SHAPES[nearest]}:
        raise UserError(f"columns {', '.join(map(str, columns))} match no measured table; see docs/calibration.md")
    raise UserError(f"columns match no measured table; nearest: {nearest}, missing {lacking} (docs/calibration.md)")


def with_default_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with defaults for absent optional columns."""
    names = set(frame.columns)
    for marks, usual in DEFAULT_COLUMNS.items():
        if set(marks) <= names:
            frame = frame.assign(**{name: value for name, value in usual.items() if name not in names})
    if {"heads", "dtype"} <= names and "kv_dtype" not in names:
        frame = frame.assign(kv_dtype=frame["dtype"])
    return frame


def engine_of(text: object) -> str:
    """Engine name without version: `trtllm 1.3.0` -> `trtllm`; `torch` if unknown."""
    word = str(text).lower()
    return next((name for start, name in ENGINES.items() if word.startswith(start)), "torch")


def _engine_of(table: str, first: Any) -> str:
    """Engine name, with a suffix for a kernel other than its usual one (`sglang-triton`, `torch-compile`).

    Chains of eager kernels are `torch-unfused`, so that other engines use a fused kernel where one was measured.
    Collectives launched one by one by the host, not in a CUDA graph, are an engine of their own.
    """
    engine = engine_of(first.get("engine", ""))
    if table == "elementwise":
        return engine + KERNEL_SUFFIXES.get(str(first.get("kernel", "")), "")
    if table.startswith("attention"):
        return f"{engine}-triton" if engine == "sglang" and first["kernel"] == "triton" else engine
    if table != "allreduce":
        return engine
    if str(first.get("source", "")) == "vidur":
        return "vidur-host"
    return f"{engine}-eager" if "eager" in str(first["impl"]) else engine


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SkippedRows:
    """Rows that cannot be predicted, with the reason.  index: labels of the rows in the table."""

    reason: str
    index: Any


def row_groups(frame: pd.DataFrame, hardware: str | Chip = "") -> Iterator[RowGroup | SkippedRows]:
    """Yield the rows of a kernel table by group.  hardware: the chip, overriding the column `device`."""
    table = table_of(frame.columns)
    slower = _slower_rows(frame, table)
    if len(slower):
        yield SkippedRows(reason=SLOWER_KERNEL, index=slower)
        frame = frame.drop(index=slower)
    keys = [name for name in ("device", "source", "engine", *FORMULA_COLUMNS[table]) if name in frame.columns]
    for _, group in frame.groupby(keys, dropna=False, sort=True):
        try:
            yield _row_group(table, group, hardware)
        except UserError as error:
            yield SkippedRows(reason=str(error), index=group.index)


def _slower_rows(frame: pd.DataFrame, table: str) -> Any:
    """Index of torch attention rows for which another torch kernel was faster at the same shape."""
    backends = frame[frame["kernel"].astype(str).str.contains(SDPA_PREFIX)] if "kernel" in frame.columns else frame[:0]
    if not table.startswith("attention") or backends.empty:
        return frame.index[:0]
    names = ("device", "engine", "dtype", "kv_dtype", "v_head_dim", *SHAPES[table])
    same = backends.groupby([name for name in names if name in frame.columns], dropna=False)["latency_us"]
    return backends.index[backends["latency_us"] > same.transform("min")]


def _row_group(table: str, group: pd.DataFrame, hardware: str | Chip) -> RowGroup:
    first = group.iloc[0]
    chip = hardware if isinstance(hardware, Chip) else specs.load(hardware or str(first["device"]).replace("_", "-"))
    return RowGroup(
        table=table,
        chip=chip,
        engine=_engine_of(table, first),
        operators=BUILDERS[table](group, first, chip),
        measured_s=group["latency_us"].to_numpy(dtype=np.float64) * 1e-6,
        index=group.index,
    )


def _column(group: pd.DataFrame, name: str) -> Array:
    return group[name].to_numpy(dtype=np.float64)


def _attention(group: pd.DataFrame, first: Any, chip: Chip, groups: Any, *, repeated: bool) -> Operator:
    dtype, stored = dtypes.get_dtype(first["dtype"]), dtypes.get_dtype(first["kv_dtype"])
    heads, kv_heads, head_dim = (_column(group, name) for name in ("heads", "kv_heads", "head_dim"))
    v_dim = _column(group, "v_head_dim") if "v_head_dim" in group.columns else head_dim
    v_dim = np.where(np.isfinite(v_dim), v_dim, head_dim)
    shape = AttentionShape(
        groups=groups,
        heads=heads,  # type: ignore[arg-type]
        kv_heads=kv_heads,
        qk_dim=head_dim,
        v_dim=v_dim,
        window=float(first["window"]) or np.inf,
    )
    q = Tensor(name="q", elements=shape.queries() * heads * head_dim, dtype=dtype)
    vectors = shape.keys() * kv_heads
    k, v = (
        Tensor(name=f"{name}_cache", elements=vectors * width, dtype=stored, role=Role.CACHE)
        for name, width in (("k", head_dim), ("v", v_dim))
    )
    moved = np.asarray((k.elements + v.elements) * stored.bytes + 2.0 * q.elements * dtype.bytes)
    warm_share = _warm_share(moved, chip) if repeated and first.get("source") == "aiconfigurator" else 0.0
    values = _reads(k if _is_absorbed_latent(group, first) else v, warm_share)
    inputs = AttentionInputs(q=q, k=_reads(k, warm_share), v=values)
    return flash(shape, inputs, rereads(shape, inputs, chip), dtype.compute)


def _is_absorbed_latent(group: pd.DataFrame, first: Any) -> bool:
    """Whether values are the first elements of the keys: latent attention in absorbed form."""
    return str(first["kernel"]).startswith("mla") and bool((group["kv_heads"] == 1).all())


def _warm_share(moved: Any, chip: Chip) -> Any:
    """Share of an input still in L2 when it is timed repeatedly: 1 up to half the L2 size, 0 from its full size."""
    if chip.l2_bytes is None:
        return 0.0 * moved
    return np.clip(2.0 - 2.0 * moved / chip.l2_bytes, 0.0, 1.0)


def _reads(tensor: Tensor, warm_share: Array | float) -> tuple[Access, ...]:
    cold, warm = (
        Access(tensor, tensor.elements * (1.0 - warm_share)),
        Access(tensor.at(Place.L2), tensor.elements * warm_share),
    )
    return (cold, warm) if np.any(warm_share) else (cold,)


def attention_prefill(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Operator of causal attention over a prompt after a cached prefix."""
    step = chunk(_column(group, "batch"), _column(group, "seq"), _column(group, "prefix"))
    return (_attention(group, first, chip, step.groups, repeated=False),)


def attention_decode(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Operator of attention of one new token per sequence over its cache."""
    step = decode(_column(group, "batch"), _column(group, "context") - 1.0)
    return (_attention(group, first, chip, step.groups, repeated=True),)


PATTERNS = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "send_recv": Collective.SEND,
}


def allreduce(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Operator of one collective of 16-bit elements within a node."""
    if first["op"] not in PATTERNS:
        raise UserError(f"unknown collective '{first['op']}'; known: {', '.join(PATTERNS)}")
    size, dtype, devices = _column(group, "bytes"), dtypes.get_dtype("bf16"), float(first["gpus"])
    x = Tensor(name="x", elements=size / dtype.bytes, dtype=dtype)
    # `bytes` is per device: as a total, measured all-to-alls would be faster than the links allow
    whole_bytes = size * devices if first["op"] == "alltoall" else size
    shape = CollectiveShape(pattern=PATTERNS[first["op"]], devices=devices, size_bytes=whole_bytes, near=chip.near)
    return (collective(str(first["op"]), (whole(x),), (whole(x.called("y")),), np.ones(len(group)), shape),)


BUILDERS: dict[str, Callable[[pd.DataFrame, Any, Chip], tuple[Operator, ...]]] = {
    "gemm": gemm,
    "attention_prefill": attention_prefill,
    "attention_decode": attention_decode,
    "allreduce": allreduce,
    "elementwise": elementwise,
}
