"""Operators for rows of measured linear recurrences: one token of every sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmviewer.calibrate.rows.elementwise import KERNEL_SUFFIXES
from llmviewer.calibrate.rows.table import Table, column
from llmviewer.core import dtypes
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Operator, Tensor
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode
from llmviewer.hardware.chip import Chip
from llmviewer.layers.linear_attention import GatedDeltaNet
from llmviewer.layers.recurrent import Mamba2

if TYPE_CHECKING:
    import pandas as pd

#: Sizes of the layer around the recurrence, which do not change it.
HIDDEN, KERNEL = 1024, 4


def _mixer(first: Any, dtype: Dtype) -> Mamba2 | GatedDeltaNet:
    heads, dim, state, groups = (int(first[name]) for name in ("heads", "head_dim", "state", "groups"))
    if first["op"] == "mamba2":
        return Mamba2(hidden=HIDDEN, heads=heads, head_dim=dim, groups=groups, state=state, kernel=KERNEL, dtype=dtype)
    if first["op"] == "gated_delta":
        return GatedDeltaNet(
            hidden=HIDDEN, k_heads=groups, v_heads=heads, k_dim=state, v_dim=dim, kernel=KERNEL, dtype=dtype, fused=True
        )
    raise UserError(f"unknown recurrence '{first['op']}'; known: mamba2, gated_delta")


def _recurrence(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """The recurrence of a layer of these heads, as in a model's graph."""
    dtype = dtypes.get_dtype(first["dtype"])
    step = decode(column(group, "batch"), 0.0)
    x = Tensor(name="x", elements=step.tokens * HIDDEN, dtype=dtype)
    return tuple(op for op in _mixer(first, dtype).operators(step, x) if op.kind is Kind.RECURRENCE)


RECURRENCE = Table(
    shape=("op", "batch", "heads", "head_dim", "state", "groups"),
    formula=("op", "dtype", "kernel", "heads", "head_dim", "state", "groups"),
    needed=("op", "dtype"),
    build=_recurrence,
    words=("op",),
    engine=lambda engine, first: engine + KERNEL_SUFFIXES.get(str(first.get("kernel", "")), ""),
)
