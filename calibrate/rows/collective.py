"""Operators for rows of measured collectives within a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.rows.table import Table, column
from llmviewer.core import dtypes
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Operator, Tensor, whole
from llmviewer.hardware.chip import HOST_PATH, Chip
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


#: End of the column `impl` of rows timed here whose collectives are in a CUDA graph, by one process per device.
IN_GRAPH = "graph"
#: (device, source) of measurements in a box -> most cards that have peer-to-peer access; NCCL copies through the host's
#: memory between more.  No column says so: aiconfigurator's L40S move 20, 5.1 and 1.5 GB/s with 2, 4 and 8 cards, where
#: 8 RTX PRO 6000 still reach 0.6 of what 2 reach.  Its pairs have access: they reach the share of the link's rate that
#: pairs of RTX PRO 6000 do, with kernels of engines' own, which need it.  A column `link` overrides this.
MOST_WITH_PEER_ACCESS = {("l40s", "aiconfigurator"): 2.0}


def _through_host(first: Any) -> bool:
    """Whether a row was measured without peer-to-peer access between the cards."""
    if link := str(first["link"]):
        return link == HOST_PATH
    box = str(first.get("device", "")).replace("_", "-"), str(first.get("source", ""))
    return float(first["gpus"]) > MOST_WITH_PEER_ACCESS.get(box, np.inf)


def _collective(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Operator of one collective of 16-bit elements within a node."""
    if first["op"] not in PATTERNS:
        raise UserError(f"unknown collective '{first['op']}'; known: {', '.join(PATTERNS)}")
    size, dtype, devices = column(group, "bytes"), dtypes.get_dtype("bf16"), float(first["gpus"])
    x = Tensor(name="x", elements=size / dtype.bytes, dtype=dtype)
    # `bytes` is per device: as a total, measured all-to-alls would be faster than the links allow
    whole_bytes = size * devices if first["op"] == "alltoall" else size
    shape = CollectiveShape(
        pattern=PATTERNS[first["op"]], devices=devices, size_bytes=whole_bytes, near=chip.near,
        through_host=chip.through_host or _through_host(first),
    )  # fmt: skip
    return (collective(str(first["op"]), (whole(x),), (whole(x.called("y")),), np.ones(len(group)), shape),)


def _engine(engine: str, first: Any) -> str:
    """The engine; collectives launched one by one by the host, not in a CUDA graph, are an engine of their own."""
    if str(first.get("source", "")) == "vidur":
        return "vidur-host"
    impl = str(first["impl"])
    by_host = "eager" in impl or (str(first.get("source", "")) == "llmviewer" and not impl.endswith(IN_GRAPH))
    return f"{engine}-eager" if by_host else engine


ALLREDUCE = Table(
    shape=("op", "gpus", "bytes"),
    formula=("op", "gpus", "impl", "link"),
    needed=("op",),
    build=_collective,
    defaults={"impl": "", "link": ""},
    words=("op",),
    engine=_engine,
)
