"""`--offload llama.cpp`: the first layers, or their experts, on the host: as many as stated, or as few as possible."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from llmviewer.analysis.capacity import memory_of, memory_of_devices
from llmviewer.analysis.pipeline import devices_of, of_fullest
from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request, decode
from llmviewer.models.model import Model
from llmviewer.ops.gemm import has_routed_experts
from llmviewer.techniques.layer_settings import OR
from llmviewer.techniques.offload.places import OffloadShares
from llmviewer.techniques.offload.plan import WHERE, Offload, with_offload

#: Tokens of a pass from which the device computes with copies of weights on the host (--op-offload).
#: Source: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-cuda/ggml-cuda.cu, offload_op
STREAMED_FROM = 32.0
#: Placeholder among the passes of a system until the request is known.
NAME = "offload(llama.cpp: cpu_layers=auto)"
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)


def layers_of(text: str) -> set[int]:
    """The numbers of ranges of layers: 0-9/20.  Raises UserError."""
    found: set[int] = set()
    for one in filter(None, text.split(OR)):
        match = _RANGE.fullmatch(one.strip())
        if match is None:
            raise UserError(f"{WHERE}: cpu_experts is {quoted(text)}; allowed: ranges of layers such as 0-9/20")
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


@frozen
class Placement:
    """The parts that the host stores and computes.

    layers: the first ones; all: the head too; auto: as few as possible.  experts: layers whose routed experts it has.
    """

    layers: float | str
    experts: frozenset[int]

    @property
    def is_empty(self) -> bool:
        """Whether everything is on the device."""
        return self.layers == 0.0 and not self.experts

    def change(self, system: System) -> System:
        """The system with this placement; it has a host.  Raises UserError where the device has no link to it."""
        if system.chip.host_link_rate is None:
            chip = system.chip.name
            raise UserError(
                f"{WHERE} llama.cpp (-ngl, --n-cpu-moe): {chip} shares its memory with the CPU; nothing is freed"
            )
        if system.parallelism.devices > 1:
            raise UserError(f"{WHERE}: layers on the host beside several devices are not modelled; use one device")
        if self.layers != "auto":
            return with_offload(system, self.plan())
        if self.experts:
            raise UserError(f"{WHERE}: cpu_layers=auto chooses the experts on the host itself; remove cpu_experts")
        return replace(system, policy=_policy).listing(NAME)

    def plan(self) -> Offload:
        """The offload plan: layers whose experts alone are on the host are those that are not there whole."""
        if self.layers == "all":
            return Offload(weights=OffloadShares(host=1.0), on_host=True, streamed_from=STREAMED_FROM)
        whole = range(int(self.layers))
        experts = tuple(sorted(self.experts - {*whole}))
        return Offload(layers=tuple(whole), expert_layers=experts, head=False, streamed_from=STREAMED_FROM)


def _policy(model: Model, system: System, request: Request, token_budget: float) -> System:
    """The system with as little as possible on the host: of a mixture of experts first the experts of layers.

    Source of the order: https://github.com/ggml-org/llama.cpp/blob/master/tools/fit-params/README.md
    """
    graph = model.graph(decode(1.0, 1.0))
    count = sum(block.repeats for block in graph.blocks if block.is_layer)
    every = frozenset(range(count)) if has_routed_experts(graph) else frozenset()

    def with_experts(number: int) -> System:
        return _placed(system, Placement(layers=0.0, experts=frozenset(range(number))), count)

    def with_layers(number: int) -> System:
        return _placed(system, Placement(layers="all" if number > count else float(number), experts=every), count)

    def fits(one: System) -> bool:
        return bool(np.all(memory_of(model, one, request, token_budget).fits))

    if fits(found := _placed(system, Placement(layers=0.0, experts=frozenset()), count)):
        return found  # the usual case, told by one look
    if not (every and fits(with_experts(count))):
        found = _fewest(with_layers, count + 1, fits)
    elif system.split is None:
        found = _fewest(with_experts, count, fits)
    else:
        found = _fewest_of_each(model, system, request, token_budget)
    return found if found.split is None else of_fullest(found.split, model)


def _fewest_of_each(model: Model, system: System, request: Request, token_budget: float) -> System:
    """The split in which every device keeps the experts of as many of its layers as it has room for."""
    assert system.split is not None
    devices = devices_of(model.graph(decode(1.0, 0.0)), system.split)
    count, request = sum(one.layers for one in devices), system.batching.padded(request)

    def placed(moved: Sequence[int]) -> System:
        experts = {one.first + at for one, number in zip(devices, moved, strict=True) for at in range(number)}
        return _placed(system, Placement(layers=0.0, experts=frozenset(experts)), count)

    low, high = [0 for _ in devices], [one.layers for one in devices]
    while low != high:
        middle = [(least + most) // 2 for least, most in zip(low, high, strict=True)]
        held = memory_of_devices(model, placed(middle), request, token_budget)
        for at, (_, memory) in enumerate(held):
            if low[at] < high[at] and np.all(memory.fits):
                high[at] = middle[at]
            elif low[at] < high[at]:
                low[at] = middle[at] + 1
    return placed(low)


def _fewest(make: Callable[[int], System], most: int, fits: Callable[[System], bool]) -> System:
    """The system with the fewest on the host that fits; with the most where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(make(middle)) else (middle + 1, high)
    return make(low)


def _placed(system: System, placement: Placement, count: int) -> System:
    """The system with its placeholder replaced by a placement, also in draft models that use the target's weights.

    count: layers of the model.
    """
    if system.split is not None:
        split = system.split.with_each(lambda one: _placed(one, placement, count))
        return replace(_placed(replace(system, split=None), placement, count), split=split)
    at = [applied.name for applied in system.passes].index(NAME)
    before = replace(system, passes=system.passes[:at], policy=None)
    drafters = tuple(
        replace(one, system=_placed(one.system, placement, count)) if one.system.policy is _policy else one
        for one in system.drafters
    )
    done = before
    if not placement.is_empty:
        here = count + 1 - (count + 1 if placement.layers == "all" else int(placement.layers))
        experts = f", experts of {count - len(placement.experts)} of {count}" if placement.experts else ""
        done = with_offload(before, placement.plan(), f"auto: {here} of {count + 1} layers{experts} on the device; ")
    else:
        done = before.listing(f"offload(auto: all of {count + 1} layers on the device)")
    return replace(done, passes=(*done.passes, *system.passes[at + 1 :]), drafters=drafters)
