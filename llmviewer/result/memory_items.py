"""Items of a device's memory with their basis: counted from shapes, measured for an engine's version, or assumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from llmviewer.analysis.memory import Memory
from llmviewer.analysis.system import System
from llmviewer.models.model import Model
from llmviewer.timing.engine_memory import PCIE, EngineMemory

#: Parts of the weights beside the language model, as `Memory.parts` names them -> why they are there.
WEIGHT_PARTS = {
    "vision tower": "stored in 16 bit beside the language model, its projector included",
    "rotary tables": "cosines and sines up to the model's maximum context",
    "allocator's rounding": "segments of 2 MiB of PyTorch's allocator",
    "padding of MXFP4 experts": "rows and columns padded for the engine's kernels",
}


def memory_items(model: Model, system: System, memory: Memory) -> list[dict[str, Any]]:
    """Items of one point: name, the field of the memory object that contains it (`within`), bytes, basis and note.

    basis: `counted` from the shapes of the model, `measured` constants of the engine's version, or `assumed`.
    """
    constants = system.engine.memory
    rows = _plain(model, memory) if constants is None else _of_engine(system, memory, constants)
    names = ("name", "within", "bytes", "basis", "note")
    items = [dict(zip(names, row, strict=True)) for row in rows]
    return [{**item, "bytes": round(float(np.max(item["bytes"])))} for item in items if np.max(item["bytes"])]


def _plain(model: Model, memory: Memory) -> Iterator[tuple[Any, ...]]:
    vision = memory.parts.get("vision tower", 0.0)
    yield "language model", "weights_bytes", memory.weights_bytes - vision, "counted", ""
    yield "vision tower", "weights_bytes", vision, "counted", WEIGHT_PARTS["vision tower"]
    yield "KV cache", "kv_cache_bytes", memory.kv_cache_bytes, "counted", "of this workload"
    yield "activations", "activations_bytes", memory.activations_bytes, "counted", "peak of live tensors"
    yield "framework", "framework_bytes", memory.framework_bytes, "assumed", "CUDA context and libraries"


def _of_engine(system: System, memory: Memory, constants: EngineMemory) -> Iterator[tuple[Any, ...]]:
    parts = memory.parts
    beside = sum(parts[name] for name in WEIGHT_PARTS)
    yield "language model", "weights_bytes", memory.weights_bytes - beside, "counted", ""
    for name, why in WEIGHT_PARTS.items():
        yield name, "weights_bytes", parts[name], "counted", why
    yield "KV cache", "kv_cache_bytes", memory.kv_cache_bytes, "counted", "of this workload"
    yield _activations(memory, constants)
    if np.isfinite(parts["sampler"]):
        basis = constants.basis("vision_gib")
        yield "vision encoder", "activations_bytes", parts["vision"], basis, "what its profiling run adds"
    pair = "pcie_group_gib" if system.chip.default_link in PCIE else "group_gib"
    names = ("alone_gib",) if system.parallelism.tensor == 1 else (pair, "member_gib")
    note = "CUDA context and libraries" + ("" if len(names) == 1 else ", buffers of the tensor group")
    yield "outside PyTorch", "framework_bytes", memory.framework_bytes, constants.basis(*names), note
    where = "in the budget" if constants.graphs_in_budget else "beside the budget, not in the total"
    within = "cuda_graphs_bytes" if constants.graphs_in_budget else ""
    size = memory.cuda_graphs_bytes if constants.graphs_in_budget else parts["CUDA graphs"]
    yield "CUDA graphs", within, size, constants.basis("graph_gib"), where


def _activations(memory: Memory, constants: EngineMemory) -> tuple[Any, ...]:
    """The peak of the profiling run and the part of a pass that sets it."""
    parts = memory.parts
    if not np.isfinite(parts["sampler"]):
        return "activations", "activations_bytes", memory.activations_bytes, "counted", "peak of live tensors"
    sampled = parts["sampler"] >= parts["layer"]
    tokens, sequences = f"{constants.tokens:,.0f}", f"{min(constants.sequences, constants.tokens):,.0f}"
    what = f"sampling for {sequences} sequences" if sampled else f"a layer on {tokens} tokens"
    basis = constants.basis("logit_bytes" if sampled else "layer_hidden")
    size = max(parts["sampler"], parts["layer"])
    return "profiling run", "activations_bytes", size, basis, f"{what}; reserved whatever the workload"
