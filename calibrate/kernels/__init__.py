"""Measured kernels, one file each.  A KernelCase of the plan refers to them by their name in KERNELS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels import (
    allreduce,
    attention,
    block,
    copy,
    elementwise,
    encoder,
    exchange,
    experts,
    flex,
    fp8,
    host,
    int4,
    int8,
    launch,
    library,
    linear,
    mla,
    model,
    moe,
    recurrence,
    serving,
    sparse,
    varlen,
)
from llmviewer.calibrate.timer import PreparedKernel

#: Prepares a kernel from the columns of its row.
Build = Callable[[Mapping[str, Any], Buffers], PreparedKernel]

KERNELS: dict[str, Build] = {
    "copy": copy.build,
    "linear": linear.build,
    "int8": int8.build,
    "fp8": fp8.build,
    "int4": int4.build,
    "experts": experts.build,
    "attention": attention.build,
    "mla": mla.build,
    "encoder": encoder.build,
    "moe": moe.build,
    "elementwise": elementwise.build,
    "launch": launch.build,
    "allreduce": allreduce.build,
    "block": block.build,
    "model": model.build,
    "sparse": sparse.build,
    "varlen": varlen.build,
    "serving": serving.build,
    "host": host.build,
    "library": library.build,
    "recurrence": recurrence.build,
    "flex": flex.build,
    "exchange": exchange.build,
}
