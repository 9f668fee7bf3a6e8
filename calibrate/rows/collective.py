"""Operators for rows of measured collectives within a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.rows.table import Table, column
from llmviewer.core import dtypes
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Operator, Tensor, whole
from llmviewer.hardware.chip import Chip
from llmviewer.ops.collective import Collective, CollectiveShape, collective

if TYPE_CHECKING:
    import pandas as pd

PATTERNS = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "send_recv": Collective.SEND,
}


def _collective(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Operator of one collective of 16-bit elements within a node."""
    if first["op"] not in PATTERNS:
        raise UserError(f"unknown collective '{first['op']}'; known: {', '.join(PATTERNS)}")
    size, dtype, devices = column(group, "bytes"), dtypes.get_dtype("bf16"), float(first["gpus"])
    x = Tensor(name="x", elements=size / dtype.bytes, dtype=dtype)
    # `bytes` is per device: as a total, measured all-to-alls would be faster than the links allow
    whole_bytes = size * devices if first["op"] == "alltoall" else size
    shape = CollectiveShape(pattern=PATTERNS[first["op"]], devices=devices, size_bytes=whole_bytes, near=chip.near)
    return (collective(str(first["op"]), (whole(x),), (whole(x.called("y")),), np.ones(len(group)), shape),)


def _engine(engine: str, first: Any) -> str:
    """The engine; collectives launched one by one by the host, not in a CUDA graph, are an engine of their own."""
    if str(first.get("source", "")) == "vidur":
        return "vidur-host"
    return f"{engine}-eager" if "eager" in str(first["impl"]) else engine


ALLREDUCE = Table(
    shape=("op", "gpus", "bytes"),
    formula=("op", "gpus", "impl"),
    needed=("op",),
    build=_collective,
    defaults={"impl": ""},
    words=("op",),
    engine=_engine,
)
