"""Memory of one device as trees: weights tensor by tensor, the KV cache, activations, and limits of the capacity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.memory import has_input_states
from llmviewer.analysis.pipeline import stores_drafts
from llmviewer.core.errors import unknown
from llmviewer.core.ir import Graph, Place
from llmviewer.result.explanation.cache import caches
from llmviewer.result.explanation.chips import sheet
from llmviewer.result.explanation.metrics import Question
from llmviewer.result.explanation.node import Node, of_formula, sum_of, sum_with_rest

#: Parts of the total.
PARTS = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "framework_bytes", "cuda_graphs_bytes")
SOURCES = {
    "activations_bytes": "peak over both stages of the live tensors (analysis/memory.py)",
    "framework_bytes": "memory of CUDA and of the engine beside tensors (provenance.assumed of the result)",
    "cuda_graphs_bytes": "CUDA graphs of the engine, by its logs",
    "kv_cache_used_bytes": "part of the cache that holds tokens (serving/kv_cache.py)",
    "host_bytes": "tensors that --offload stores on the host",
    "disk_bytes": "tensors that --offload stores on the host's disk",
}
#: Part of the weights beside the checkpoint's language model -> its source.
WEIGHT_PARTS = {
    "vision tower": "16-bit weights of the vision tower and its projector (analysis/engine_parts.py)",
    "rotary tables": "cosines and sines up to the model's maximum context (analysis/engine_parts.py)",
    "allocator's rounding": "whole segments of PyTorch's allocator (analysis/engine_parts.py)",
    "padding of MXFP4 experts": "sizes of experts rounded up by the engine (analysis/engine_parts.py)",
}
#: Rests of a sum: their names and sources.
OTHER_WEIGHTS = "other weights", "weights of draft models that store parts of this one (analysis/capacity.py)"
OTHER_CACHES = (
    "other caches",
    "caches of branches, of an encoder's input, or of draft models on another device (analysis/capacity.py)",
)
REPORTED = "part of the capacity that drivers usually report (analysis/engine_parts.py)"
NAMES = (
    *PARTS,
    *("total_bytes", "capacity_bytes", "budget_bytes", "kv_cache_budget_bytes"),
    *("kv_cache_used_bytes", "kv_cache_waste_bytes", "host_bytes", "disk_bytes"),
)


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


def _left(one: Question, value: float) -> Node:
    others = _others(one)
    budget = memory_node(one, "budget_bytes")
    formula = " - ".join(("budget_bytes", *(child.name for child in others)))
    source = "what the others leave of the budget"
    return _node("kv_cache_budget_bytes", value, f"max({formula}, 0)", source, (budget, *others))


def _others(one: Question) -> tuple[Node, ...]:
    """Parts of the total beside the KV cache."""
    return tuple(memory_node(one, part) for part in PARTS if part != "kv_cache_bytes" and _value(one, part))


def _capacity(one: Question, value: float) -> Node:
    chip = one.analysis.system.chip
    source = sheet(chip, "memory_bytes")
    if value != one.at(chip.memory_bytes):
        known = chip.reported_memory_bytes is not None
        source = sheet(chip, "reported_memory_bytes") if known else f"{REPORTED}; {source}"
    return Node(name="capacity_bytes", value=value, unit="byte", source=source)


def _value(one: Question, name: str) -> float:
    return one.at(getattr(one.analysis.memory, name))


def _node(name: str, value: float, formula: str, source: str, children: tuple[Node, ...]) -> Node:
    return Node(name=name, value=value, unit="byte", formula=formula, source=source, children=children)


def _weights(one: Question, value: float) -> Node:
    """Stored weights of one device, layers of one kind together, of its draft models, and what an engine adds."""
    own, sizes = one.analysis, one.analysis.memory.parts
    children = list(_stored(own, own.evaluation.graph, ()))
    for draft, drafting in own.drafts if stores_drafts(own.model, own.system) else ():
        if draft.shared is not None:
            own_weights = _stored(drafting, drafting.passes.graph, draft.shared)
            children += (replace(node, name=f"draft {draft.name}: {node.name}") for node in own_weights)
    children += (
        Node(name=name, value=sizes[name], unit="byte", source=source)
        for name, source in WEIGHT_PARTS.items()
        if sizes.get(name)
    )
    return sum_with_rest("weights_bytes", value, tuple(children), "every stored weight once", OTHER_WEIGHTS, "byte")


def _stored(own: Analysis, graph: Graph, shared: Sequence[str]) -> Iterator[Node]:
    """Stored weights of a graph on the device, but those that another model stores."""
    config = own.model.source or own.model.name
    for tensor, times in graph.stored_weights():
        if tensor.place is not Place.DEVICE or tensor.name in shared:
            continue
        values = {
            "elements": float(tensor.elements),
            "bytes_per_element": float(tensor.dtype.bytes),
            "layers": float(times),
        }
        source = f"sizes of the config ({config}), format {tensor.dtype.name}"
        yield of_formula(tensor.name, "elements * bytes_per_element * layers", (), source, values, "byte")


def _cache(one: Question, value: float) -> Node:
    """KV cache of the workload, state by state; what branches and an encoder's input store is one number."""
    own = one.analysis
    plain = own.system.generation.branches is None and not has_input_states(own.passes.graph)
    children = tuple(caches(one)) if plain else ()
    source = "keys, values, latents and states of all layers"
    return sum_with_rest("kv_cache_bytes", value, children, source, OTHER_CACHES, "byte")


def _waste(one: Question, value: float) -> Node:
    parts = memory_node(one, "kv_cache_bytes"), memory_node(one, "kv_cache_used_bytes")
    source = "allocated and empty: ends of pages, unused reservations"
    return _node("kv_cache_waste_bytes", value, "kv_cache_bytes - kv_cache_used_bytes", source, parts)


def _budget(one: Question, value: float) -> Node:
    capacity = memory_node(one, "capacity_bytes")
    system, source = one.analysis.system, "what the engine may use"
    if system.cache_fraction is None:
        share = Node(name="share", value=system.memory_utilization, source="--gpu-memory-utilization")
        return _node("budget_bytes", value, "capacity_bytes * share", source, (capacity, share))
    others = sum_of("others_bytes", _others(one), "all but the KV cache", "byte")
    share = Node(name="share", value=system.cache_fraction, source="--kv-cache-free-gpu-memory-fraction")
    formula = "others_bytes + (capacity_bytes - others_bytes) * share"
    return _node("budget_bytes", value, formula, source, (capacity, others, share))


BUILDERS: dict[str, Callable[[Question, float], Node]] = {
    "total_bytes": _total,
    "weights_bytes": _weights,
    "kv_cache_bytes": _cache,
    "kv_cache_waste_bytes": _waste,
    "budget_bytes": _budget,
    "kv_cache_budget_bytes": _left,
    "capacity_bytes": _capacity,
}
