"""Operators of ops/ for measured tables, as arrays: one formula for prediction, fit and validation.

Columns are those of docs/guide/calibration.md.  Rows that cannot be predicted are reported, with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.rows import attention, collective, elementwise, experts, gemm, mla, recurrence
from llmviewer.calibrate.rows.table import Table
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Operator
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip

if TYPE_CHECKING:
    import pandas as pd

#: Prefix of the column `engine` -> engine name in profiles.
ENGINES = {
    "vidur": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
    "tensorrt-llm": "trtllm",
    "vllm": "vllm",
    "nccl": "nccl",
    "aiter": "aiter",
    "flashinfer": "flashinfer",
}
#: Name -> table.
TABLES: dict[str, Table] = {
    "gemm": gemm.GEMM,
    "attention_prefill": attention.PREFILL,
    "attention_decode": attention.DECODE,
    "attention_encoder": attention.ENCODER,
    "mla": mla.MLA,
    "allreduce": collective.ALLREDUCE,
    "elementwise": elementwise.ELEMENTWISE,
    "moe": experts.MOE,
    "recurrence": recurrence.RECURRENCE,
}
#: Prefix of the kernels of scaled_dot_product_attention, and the reasons to leave out rows that are not of the fastest.
SDPA_PREFIX = "sdpa_"
SLOWER_KERNEL = "another attention kernel of torch is faster at the same shape; profiles contain only the fastest"
UNMEASURED_KERNEL = "an attention kernel of torch that is faster at most other shapes was not measured at this one"
#: Columns of attention that say which kernels can run it at all.
HEAD_WIDTHS = ("device", "engine", "dtype", "kv_dtype", "head_dim", "v_head_dim", "window")


@frozen(eq=False)
class RowGroup:
    """Rows of a table described by one array operator, or by a short sequence of them.

    index: labels of the rows in the table.  measured_s: measured times [s].  family: family of the fit, "" if the
    operator says it.
    """

    table: str
    chip: Chip
    engine: str
    operators: tuple[Operator, ...]
    measured_s: Array
    index: Any
    family: str = ""


def table_of(columns: Any) -> str:
    """Name of the kernel table that has most of its columns here.  Raises UserError if there is none."""
    names = set(columns)
    found = [name for name, table in TABLES.items() if {*table.mandatory, "device", "latency_us"} <= names]
    if found:
        return max(found, key=lambda name: len(TABLES[name].mandatory))
    nearest = min(TABLES, key=lambda name: len(TABLES[name].mandatory - names) / len(TABLES[name].mandatory))
    needed = [column for column in TABLES[nearest].shape if column in TABLES[nearest].mandatory]
    lacking = ", ".join(name for name in (*needed, "device", "latency_us") if name not in names)
    if not names & {*needed}:
        raise UserError(f"{len(columns)} columns match no measured table; see docs/guide/calibration.md")
    expected = f"nearest: {nearest}, missing {lacking} (docs/guide/calibration.md)"
    raise UserError(f"columns match no measured table; {expected}")


def with_default_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with defaults for absent optional columns."""
    names = set(frame.columns)
    for table in TABLES.values():
        if table.mandatory <= names:
            frame = frame.assign(**{name: value for name, value in table.defaults.items() if name not in frame.columns})
    if {"heads", "dtype"} <= names and "kv_dtype" not in names:
        frame = frame.assign(kv_dtype=frame["dtype"])
    return frame


def engine_of(text: object) -> str:
    """Engine name without version: `trtllm 1.3.0` -> `trtllm`; `torch` if unknown."""
    word = str(text).lower()
    return next((name for start, name in ENGINES.items() if word.startswith(start)), "torch")


@frozen(eq=False)
class SkippedRows:
    """Rows that cannot be predicted, with the reason.  index: labels of the rows in the table."""

    reason: str
    index: Any


def row_groups(frame: pd.DataFrame, hardware: str | Chip = "") -> Iterator[RowGroup | SkippedRows]:
    """Yield the rows of a kernel table by group.  hardware: the chip, overriding the column `device`."""
    table = table_of(frame.columns)
    for reason, index in _not_fastest(frame, table):
        yield SkippedRows(reason=reason, index=index)
        frame = frame.drop(index=index)
    keys: list[Any] = [name for name in ("device", "source", "engine", *TABLES[table].formula) if name in frame.columns]
    if (apart := TABLES[table].apart) is not None:
        keys.append(apart(frame))
    for _, group in frame.groupby(keys, dropna=False, sort=True):
        try:
            yield _row_group(table, group, hardware)
        except UserError as error:
            yield SkippedRows(reason=error.marked, index=group.index)


def _not_fastest(frame: pd.DataFrame, table: str) -> Iterator[tuple[str, Any]]:
    """Reason and index of torch attention rows that are not of torch's fastest kernel at their shape, or may not be.

    A run that ended early has shapes with some of the kernels: the fastest of these says nothing about torch if one
    that is faster at most shapes of the same heads, measured with both, is missing.
    """
    backends = frame[frame["kernel"].astype(str).str.contains(SDPA_PREFIX)] if "kernel" in frame.columns else frame[:0]
    if not table.startswith("attention") or backends.empty:
        return
    widths = [name for name in HEAD_WIDTHS if name in frame.columns]
    keys = [*widths, *(name for name in TABLES[table].shape if name not in widths)]
    times = backends.groupby([*keys, "kernel"], dropna=False)["latency_us"].min().unstack("kernel")
    fastest = times.min(axis="columns")
    of_shape = backends[keys].merge(fastest.rename("us").reset_index(), how="left", on=keys)["us"].to_numpy()
    slower = backends["latency_us"].to_numpy() > of_shape
    if slower.any():
        yield SLOWER_KERNEL, backends.index[slower]
    doubted = _doubted(times, widths)
    lacking = ~slower & backends[keys].merge(doubted.rename("no").reset_index(), how="left", on=keys)["no"].to_numpy()
    if lacking.any():
        yield UNMEASURED_KERNEL, backends.index[lacking]


def _doubted(times: pd.DataFrame, widths: list[str]) -> pd.Series[bool]:
    """Whether a shape lacks a kernel that beats its fastest one at most shapes of these widths that have both.

    times: shape x kernel, NaN where not measured.
    """
    fastest = times.min(axis="columns")
    doubted = fastest.isna()
    for winner in times.columns:
        for rival in times.columns:
            both = times[[winner, rival]].notna().all(axis="columns")
            faster = (times[rival] < times[winner]).astype(float).where(both)
            is_usual = faster.groupby(level=widths, dropna=False).transform("mean") > 0.5
            doubted |= (times[winner] == fastest) & times[rival].isna() & is_usual
    return doubted


def _row_group(table: str, group: pd.DataFrame, hardware: str | Chip) -> RowGroup:
    first = group.iloc[0]
    chip = hardware if isinstance(hardware, Chip) else specs.load(hardware or str(first["device"]).replace("_", "-"))
    return RowGroup(
        table=table,
        chip=chip,
        engine=TABLES[table].engine(engine_of(first.get("engine", "")), first),
        operators=TABLES[table].build(group, first, chip),
        measured_s=group["latency_us"].to_numpy(dtype=np.float64) * 1e-6,
        index=group.index,
        family=TABLES[table].family(first),
    )
