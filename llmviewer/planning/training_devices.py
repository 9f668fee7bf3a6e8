"""Devices of a training step: its layout as asked, and the least layout that fits where that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.analysis.training_layout import Layout, Offload
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.hardware import specs
from llmviewer.techniques.parallel.sizes import USUAL, check_reach
from llmviewer.timing.calibrated import attainable
from llmviewer.timing.roofline import ideal

#: Most replicas that the search for a layout that fits tries.
MOST_REPLICAS = 4096


@frozen
class Asked:
    """The options of a training as they were asked, checked one by one."""

    batch_size: int
    input_len: int
    optimizer: str
    recompute: tuple[float, bool]
    zero: int
    micro: int | None
    virtual: int
    offload: Offload
    teacher: str


def layout_of(system: System, asked: Asked) -> tuple[Layout, int]:
    """The layout of a step, and the sequences of all replicas."""
    p, batch = system.parallelism, max(asked.batch_size, system.parallelism.data)
    if 1 < asked.batch_size < p.data:
        raise UserError(f"batch_size is {asked.batch_size}; allowed: a sequence for each of {p.data} replicas, or more")
    if asked.zero and p.data == 1:
        raise UserError(f"zero is {asked.zero}, but there is one replica to divide by; add --data-parallel-size")
    if asked.virtual > 1 and p.pipeline == 1:
        raise UserError(f"virtual_stages is {asked.virtual}, but there is no pipeline; add --pipeline-parallel-size")
    if asked.offload is not Offload.NONE and asked.optimizer.startswith("paged-"):
        raise UserError(f"cpu_offload is {asked.offload.value} beside {asked.optimizer}, both for the host; use one")
    if p.data > 1:
        check_reach(system.chip, replace(p, pipeline=p.pipeline * (1 if p.expert > 1 else p.data)))
    own = int(np.ceil(batch / p.data))
    micro = min(asked.micro or (own if p.pipeline == 1 else 1), own)
    host = None
    if asked.offload is not Offload.NONE:
        host = specs.host(system.chip.usual_host)[0]
        sharing = int(min(p.devices, system.chip.near))
        host = replace(host if system.efficiency is ideal else attainable(host), devices=sharing)
    return Layout(
        micro_batch=float(micro),
        micro_batches=float(np.ceil(own / micro)),
        data=p.data,
        zero=asked.zero,
        experts=p.expert,
        virtual=asked.virtual,
        offload=asked.offload,
        host=host,
    ), batch


def least_layout(asked: Asked, system: System, fits: Callable[[Asked, Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    """Options of the layout that fits with the fewest devices, among doublings of the replicas, and the fewest changes.

    Changes are ZeRO 3, then recomputation of all layers, then micro-batches of one sequence; in a pipeline, of which
    every micro-batch gathers weights, ZeRO 3 is the last.  fits: whether a step with these options of its own and of a
    run fits.  Empty if nothing fits.
    """
    p, chip, data = system.parallelism, system.chip, system.parallelism.data
    while data <= MOST_REPLICAS:
        more: dict[str, Any] = {} if data == p.data else {"data_parallel_size": str(data)}
        if data > 1 and data * p.tensor * p.pipeline > chip.near and chip.network_rate is None:
            more["network"] = USUAL
        if p.expert > 1:
            more["expert_parallel_size"] = str(p.tensor * data)
        grown = replace(asked, batch_size=max(asked.batch_size, data))
        divided: dict[str, Any] = {"zero": 3} if data > 1 else {}
        steps: tuple[dict[str, Any], ...] = ({"recompute": (1, False)}, {"micro": 1})
        steps = (*steps, divided) if p.pipeline > 1 else (divided, *steps)
        tried = [grown]
        for change in steps:
            tried.append(replace(tried[-1], **change))
        if fits(tried[-1], more):
            return more | _changes(asked, next(one for one in tried if fits(one, more)))
        data *= 2
    return {}


def _changes(asked: Asked, chosen: Asked) -> dict[str, Any]:
    """Values of a layout that are other than those asked, by option."""
    said = {
        "zero": (asked.zero, chosen.zero),
        "recompute": (asked.recompute[0], chosen.recompute[0]),
        "micro_batch_size": (asked.micro, chosen.micro),
    }
    found: dict[str, Any] = {name: after for name, (before, after) in said.items() if after != before}
    if asked.batch_size not in (1, chosen.batch_size):
        found["batch_size"] = chosen.batch_size
    return found
