"""Exchanges of torch.distributed between the processes of a group, each with one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES
from llmviewer.calibrate.timer import PreparedKernel


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """`bytes`: of the tensor that each device has at the end of an all-gather and at the start of the others."""
    dtype = DTYPES[columns["dtype"]]
    whole = torch.zeros(columns["bytes"] // dtype.itemsize, dtype=dtype, device=buffers.kind)
    part = torch.zeros_like(whole[: len(whole) // columns["gpus"]])
    other = torch.empty_like(whole)
    exchange = EXCHANGES[columns["op"]]
    return PreparedKernel(run=lambda _: exchange(whole, part, other))


#: Exchanges that torch 2.13 names anew, and that one built without torch.distributed lacks.
_GATHER: Any = getattr(dist, "all_gather_single", getattr(dist, "all_gather_into_tensor", None))
_SCATTER: Any = getattr(dist, "reduce_scatter_single", getattr(dist, "reduce_scatter_tensor", None))
#: op -> (whole tensor, part of one device, another whole one) -> exchange.
EXCHANGES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "all_reduce": lambda whole, part, other: dist.all_reduce(whole),
    "all_gather": lambda whole, part, other: _GATHER(whole, part),
    "reduce_scatter": lambda whole, part, other: _SCATTER(part, whole),
    "alltoall": lambda whole, part, other: dist.all_to_all_single(other, whole),
}
