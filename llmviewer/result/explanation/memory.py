"""Memory of one device as trees: weights tensor by tensor, the KV cache, activations, and limits of the capacity."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from llmviewer.core.errors import unknown
from llmviewer.core.ir import Place
from llmviewer.result.explanation.metrics import Question
from llmviewer.result.explanation.node import Node

#: Parts of the total.
PARTS = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "framework_bytes", "cuda_graphs_bytes")
SOURCES = {
    "activations_bytes": "peak over both stages of the live tensors (analysis/memory.py)",
    "framework_bytes": "memory of CUDA and of the engine beside tensors (provenance.assumed of the result)",
    "cuda_graphs_bytes": "CUDA graphs of the engine, by its logs",
}
NAMES = (*PARTS, "total_bytes", "capacity_bytes", "budget_bytes", "kv_cache_budget_bytes")


def memory_node(one: Question, name: str) -> Node:
    """A number of bytes by its name in the memory object.  Raises UserError for an unknown one."""
    short = name if name in NAMES else f"{name}_bytes"
    if short not in NAMES:
        raise unknown("part of the memory", name, NAMES)
    build = BUILDERS.get(short)
    value = _value(one, short)
    return build(one, value) if build else Node(name=short, value=value, unit="byte", source=SOURCES[short])


def _total(one: Question, value: float) -> Node:
    children = tuple(memory_node(one, part) for part in PARTS if _value(one, part))
    return _node("total_bytes", value, "sum(children)", "resident at the worst moment", children)


def _all_weights(one: Question, value: float) -> Node:
    return _node("weights_bytes", value, "sum(children)", "every stored weight once", tuple(_weights(one, value)))


def _left(one: Question, value: float) -> Node:
    others = tuple(memory_node(one, part) for part in PARTS if part != "kv_cache_bytes" and _value(one, part))
    budget = memory_node(one, "budget_bytes")
    formula = " - ".join(("budget_bytes", *(child.name for child in others)))
    source = "what the others leave of the budget"
    return _node("kv_cache_budget_bytes", value, f"max({formula}, 0)", source, (budget, *others))


def _capacity(one: Question, value: float) -> Node:
    figure = one.analysis.system.chip.figures.get("memory_bytes")
    source = figure.source if figure else "figure of the chip"
    return Node(name="capacity_bytes", value=value, unit="byte", source=source)


def _value(one: Question, name: str) -> float:
    values = np.asarray(getattr(one.analysis.memory, name), dtype=np.float64)
    return float(values.reshape(-1)[one.point if values.size > 1 else 0])


def _node(name: str, value: float, formula: str, source: str, children: tuple[Node, ...]) -> Node:
    return Node(name=name, value=value, unit="byte", formula=formula, source=source, children=children)


def _weights(one: Question, value: float) -> Iterator[Node]:
    """Stored weights of one device, layers of one kind together, and what is stored beside the graph."""
    listed = 0.0
    config = one.analysis.model.source or one.analysis.model.name
    for tensor, times in one.analysis.evaluation.graph.stored_weights():
        if tensor.place is not Place.DEVICE:
            continue
        values = {
            "elements": float(tensor.elements),
            "bytes_per_element": float(tensor.dtype.bytes),
            "layers": float(times),
        }
        seen = values["elements"] * values["bytes_per_element"] * values["layers"]
        listed += seen
        formula = "elements * bytes_per_element * layers"
        yield Node(
            name=tensor.name, value=seen, unit="byte", formula=formula, values=values,
            source=f"sizes of the config ({config}), format {tensor.dtype.name}",
        )  # fmt: skip
    rest = value - listed
    if abs(rest) > 1e-9 * value:
        source = "draft models, a vision tower, tensors of other pipeline stages, or the engine's padding"
        yield Node(name="other weights", value=rest, unit="byte", source=source)


def _cache(one: Question, value: float) -> Node:
    """KV cache of the workload: sequences, tokens and bytes per token where it grows evenly."""
    request = one.analysis.request
    system = one.analysis.system
    sequences, prompt, output = (
        float(np.asarray(column, dtype=np.float64).reshape(-1)[one.point if np.size(column) > 1 else 0])
        for column in (system.parallelism.replica(request).batch_size, request.input_len, request.output_len)
    )
    tokens = prompt + output - 1.0
    values = {"sequences": sequences, "tokens": tokens, "bytes_per_token": value / (sequences * tokens)}
    source = (
        "keys, values, latents and states of all layers at input_len + output_len - 1 tokens, in blocks of the engine: "
        f"heads and sizes of the config ({one.analysis.model.source or one.analysis.model.name}), --kv-cache-dtype"
    )
    formula = "sequences * tokens * bytes_per_token"
    return Node(name="kv_cache_bytes", value=value, unit="byte", formula=formula, values=values, source=source)


def _budget(one: Question, value: float) -> Node:
    capacity = memory_node(one, "capacity_bytes")
    share = value / capacity.value
    leaf = Node(
        name="share", value=share, source="--gpu-memory-utilization, and what the driver reports of the capacity"
    )
    return _node("budget_bytes", value, "capacity_bytes * share", "what the engine may use", (capacity, leaf))


BUILDERS: dict[str, Callable[[Question, float], Node]] = {
    "total_bytes": _total,
    "weights_bytes": _all_weights,
    "kv_cache_bytes": _cache,
    "budget_bytes": _budget,
    "kv_cache_budget_bytes": _left,
    "capacity_bytes": _capacity,
}
