"""Devices that share a model's layers: which layers each holds, its time and its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.capacity import memory_of_devices, stored_request
from llmviewer.result.describe import number
from llmviewer.result.request_time import over_passes
from llmviewer.result.stages import request_at, value_at

#: Figures of a device's memory in its object.
OF_MEMORY = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "total_bytes", "budget_bytes", "fits")


def device_objects(analysis: Analysis, token_budget: float, point: int) -> list[dict[str, Any]]:
    """The devices of a split in order, one object each; those without any layer are left out.

    first_layer, layers: number of its first layer from 0, and how many it holds or its host does.  machine: of those
    that a network joins.  prefill_s, decode_s: its own time in all prefill passes, and in a representative decode step.
    memory: of this device.
    """
    request = stored_request(analysis.system, request_at(analysis, point), analysis.running)
    held = memory_of_devices(analysis.model, analysis.system, request, token_budget)
    split, found = analysis.system.split, []
    assert split is not None
    for (device, memory), part in zip(held, analysis.evaluation.each_stage, strict=True):
        figures: Mapping[str, Any] = {name: value_at(getattr(memory, name), 0) for name in OF_MEMORY}
        found.append(
            {
                "name": device.system.chip.name,
                "machine": split.machines[device.place],
                "first_layer": device.first,
                "layers": device.layers,
                "prefill_s": number(float(over_passes(analysis, "prefill", part.time_s)[point])),
                "decode_s": number(float(analysis.schedule.decode(part.time_s)[point])),
                "memory": {**{name: number(size) for name, size in figures.items()}, "fits": bool(figures["fits"])},
            }
        )
    return found


def hardware_name(answer: Mapping[str, Any]) -> str:
    """The chip of an analysis object, or the devices that share its layers: `rtx-4090+rtx-3090`."""
    return "+".join(_counted(one["name"] for one in answer.get("devices", ()))) or str(answer["hardware"]["name"])


def _counted(names: Iterator[str]) -> Iterator[str]:
    """Names in order, with a number before several that are alike."""
    for name, same in groupby(names):
        count = len(list(same))
        yield f"{count}x{name}" if count > 1 else name
