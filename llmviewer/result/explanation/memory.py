"""Memory of one device as trees: weights, KV cache by fields of the config, activations, and limits of the capacity."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.capacity import memory_of, stored_request
from llmviewer.analysis.compute_buffers import TABLE_ON_HOST
from llmviewer.analysis.memory import has_input_states
from llmviewer.analysis.pipeline import stores_drafts
from llmviewer.core.errors import UserError, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Graph, Place, State
from llmviewer.core.workload import Request
from llmviewer.layers.attention import Attention
from llmviewer.layers.linear_attention import GatedDeltaNet
from llmviewer.layers.mla import Mla
from llmviewer.layers.recurrent import Mamba, Mamba2
from llmviewer.result.explanation.kernels import sheet
from llmviewer.result.explanation.metrics import Question
from llmviewer.result.explanation.node import Node, of_formula, sum_of, sum_with_rest
from llmviewer.result.result import Result
from llmviewer.result.stages import request_at, system_at, value_at
from llmviewer.serving.kv_cache import KvCache

#: Mixer -> state -> elements by its fields.
WIDTHS: Mapping[type, Mapping[str, str]] = {
    Attention: {"k_cache": "kv_heads * head_dim", "v_cache": "kv_heads * v_dim"},
    Mla: {"latent_cache": "kv_rank + rope_dim"},
    Mamba: {"recurrent_state": "inner * state", "conv_state": "inner * kernel"},
    Mamba2: {
        "recurrent_state": "heads * head_dim * state",
        "conv_state": "(heads * head_dim + 2 * groups * state) * kernel",
    },
    GatedDeltaNet: {
        "recurrent_state": "v_heads * k_dim * v_dim",
        "conv_state": "(2 * k_heads * k_dim + v_heads * v_dim) * kernel",
    },
}
#: Field of a mixer -> what it is in a config.
FIELDS = {
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim, or hidden_size over num_attention_heads",
    "v_dim": "size of a value head: v_head_dim, linear_value_head_dim or head_dim",
    "kv_rank": "kv_lora_rank",
    "rope_dim": "qk_rope_head_dim",
    "inner": "intermediate_size of the mixer, or expand x hidden_size",
    "state": "state_size",
    "kernel": "conv_kernel",
}
SHARE = "part on this device (-tp, context parallelism), or what a technique keeps of it (--matformer, --prune)"
TOKENS = "tokens that the cache holds for a sequence: its pages, reservation, window and eviction (serving/kv_cache.py)"
CONTEXT = "prompt and output without its last token, and draft tokens that may be rejected (spare)"
STORED = "stored for the sequences that run at once: layers x sequences x bytes of a sequence"


@frozen(eq=False)
class Stored:
    """Sequences of one replica whose caches a device stores: their number, and how they are stored.

    context: tokens of each.  prefix: tokens that all share.  spare: draft tokens that may be rejected.
    """

    sequences: float
    context: Node
    prefix: float
    spare: float
    policy: KvCache


def caches(one: Question) -> Iterator[Node]:
    """The states of all layers of one device, and those of its draft models."""
    own = one.analysis
    request = stored_request(own.system, own.request, own.running)
    yield from _states(own, _stored_cache(one, request))
    for draft, drafting in one.drafts:
        if draft.caches:
            for node in _states(drafting.analysis, _stored_cache(drafting, request)):
                yield replace(node, name=f"draft {draft.name}: {node.name}")


def _states(own: Analysis, stored: Stored) -> Iterator[Node]:
    """The states of all layers of one model on a device."""
    for block in own.passes.graph.blocks:
        for state in block.states:
            if state.place is Place.DEVICE:
                yield from _state(own, block, state, stored)


def _stored_cache(one: Question, request: Request) -> Stored:
    """The part of the sequences of all replicas that one replica stores."""
    own, generation = one.analysis, one.analysis.system.generation
    replica = own.system.parallelism.replica(request)
    batch, prompt, output = (one.at(size) for size in (replica.batch_size, replica.input_len, replica.output_len))
    spare = one.at(generation.spare_tokens)
    values = {"input_len": prompt, "output_len": output, **({"spare": spare} if spare else {})}
    context = of_formula("context", " + ".join(values) + " - 1", (), CONTEXT, values, "")
    if generation.denoising is not None:
        cached = float(np.max(generation.denoising.cached_tokens(context.value)))
        context = Node(name="context", value=cached, source="tokens of decided blocks (serving/generation.py)")
    policy = own.system.kv_cache
    if policy.reserve == np.inf:
        policy = replace(policy, reserve=own.model.max_context)
    hit = float(np.max(policy.prefix_hit(prompt)))
    return Stored(sequences=batch, context=context, prefix=hit, spare=spare, policy=policy)


def _state(own: Analysis, block: Block, state: State, stored: Stored) -> Iterator[Node]:
    """One state of one kind of layer: of all sequences, and of the prefix that they share."""
    name = f"{block.name}.{state.name}"
    config = own.model.source or own.model.name
    layers = Node(name="layers", value=float(block.repeats), source=f"layers of this kind on the device ({config})")
    width = _width(own, block, state, config)
    source = f"{state.dtype.name} (--kv-cache-dtype)"
    bytes_ = Node(name="bytes_per_element", value=float(state.dtype.bytes), source=source)
    tokens, shared = _tokens(state, stored)
    usable = {"usable": 1.0 - stored.policy.fragmented} if stored.policy.fragmented else {}
    over = " / usable" if usable else ""
    sequences = Node(name="sequences", value=stored.sequences, source="sequences of a replica that run at once")
    if state.per_token:
        formula = f"layers * sequences * tokens * elements * bytes_per_element{over}"
        yield of_formula(name, formula, (layers, sequences, tokens, width, bytes_), STORED, usable, "byte")
        if shared:
            formula = f"layers * shared_tokens * elements * bytes_per_element{over}"
            values = {"shared_tokens": shared, **usable}
            yield of_formula(f"{name}, shared prefix", formula, (layers, width, bytes_), TOKENS, values, "byte")
    if state.per_sequence:
        source = "one, and one per draft token that may be rejected"
        copies = Node(name="copies", value=1.0 + stored.spare, source=source)
        formula = "layers * sequences * copies * elements * bytes_per_element"
        size = _width(own, block, replace(state, per_token=0.0), config)
        yield of_formula(name, formula, (layers, sequences, copies, size, bytes_), STORED, {}, "byte")


def _tokens(state: State, stored: Stored) -> tuple[Node, float]:
    """Tokens allocated for one sequence, and for the prefix that all share."""
    policy, formula = stored.policy, "context"
    found = policy.allocated_tokens(state, stored.context.value, stored.prefix)
    own, shared = (float(np.max(count)) for count in found)
    values: dict[str, float] = {}
    if policy.block_size > 1.0:
        formula, values = "ceil(context / block) * block", {"block": policy.block_size}
    if np.isfinite(state.window):
        pages = "ceil((window - 1) / block) * block + block" if policy.block_size > 1.0 else "window"
        formula, values = f"min({formula}, {pages})", {**values, "window": state.window}
    node = of_formula("tokens", formula, (stored.context,), TOKENS, values, "")
    if abs(node.value - own) > 1e-9 * own:
        node = Node(name="tokens", value=own, source=TOKENS)
    return node, shared


def _width(own: Analysis, block: Block, state: State, config: str) -> Node:
    """Elements of a state per token, or per sequence, by the fields of its mixer."""
    value = float(state.per_token or state.per_sequence)
    mixer = next((layer.mixer for layer in own.model.all_layers if layer.name == block.name), None)
    mixer = getattr(mixer, "attention", mixer)
    formula = WIDTHS.get(type(mixer), {}).get(state.name, "")
    if not formula:
        source = f"sizes of the config ({config}), as `{block.name}` stores them"
        return Node(name="elements", value=value, source=source)
    fields = tuple(_field(mixer, name, config) for name in dict.fromkeys(re.findall(r"[a-z_]+", formula)))
    whole = of_formula("elements", formula, fields, "", {}, "")
    share = value / whole.value
    if share != 1.0:
        formula = f"({formula}) * share"
        fields = (*fields, Node(name="share", value=share, source=SHARE))
    return of_formula("elements", formula, fields, f"elements of {state.name} per token or sequence", {}, "")


def _field(mixer: Any, name: str, config: str) -> Node:
    """A size of a mixer, as its config states it."""
    value = getattr(mixer, name) or mixer.head_dim  # a value head has the size of a key head unless stated
    return Node(name=name, value=float(value), source=f"{FIELDS.get(name, name)} of the config ({config})")


#: Limit -> what it is.
LIMITS = {
    "max_batch_size": "largest batch whose total stays within the budget (analysis/limits.py)",
    "max_context_len": "longest input_len + output_len of this batch whose total stays within the budget",
    "max_concurrent_requests": "requests of full length whose caches fit together in what others leave of the budget",
    "max_model_len": "longest context that the engine serves (--max-model-len, else the model's)",
    "max_model_len_to_start": "longest context that fits the budget of the cache (analysis/limits.py)",
    "kv_cache_tokens": "tokens of whole blocks that the budget of the cache holds, of vLLM since 0.20.2 "
    "max_concurrency x max_model_len (analysis/limits.py)",
    "max_concurrency": "requests of the longest context that the budget of the cache holds (analysis/limits.py)",
}
#: Limit of a search -> the size of the request that varies.
VARIED = {"max_batch_size": "batch_size", "max_context_len": "input_len"}


def limit(result: Result, one: Question, name: str) -> Node:
    """A limit with the memory that it leaves.  Raises UserError for one that is not known."""
    found = result.memory_at(one.point)[name]
    if found is None:
        raise UserError(f"memory.{name} is not known here: no limit, or the engine's memory is not known")
    value = float(found)
    children = _evidence(result, one, name, value) if name in VARIED and value else ()
    return Node(name=name, value=value, source=LIMITS[name], children=children)


def _evidence(result: Result, one: Question, name: str, value: float) -> tuple[Node, ...]:
    """The total at the limit, one beyond it, and the budget."""
    own = one.analysis
    system, request, size = system_at(own, one.point), request_at(own, one.point), VARIED[name]
    largest = value - (request.output_len if size == "input_len" else 0.0)
    sizes = np.array([largest, largest + 1.0])
    columns = {field: getattr(request, field) * np.ones(2) for field in ("batch_size", "input_len", "output_len")}
    memory = memory_of(own.model, system, Request(**{**columns, size: sizes}), result.token_budget)
    source = "memory of a request of this size (analysis/capacity.py)"
    found = (
        Node(
            name=f"total_bytes at {size} {tried:.0f}",
            value=value_at(memory.total_bytes, at),
            unit="byte",
            source=source,
        )
        for at, tried in enumerate(sizes)
    )
    budget = Node(
        name="budget_bytes", value=value_at(memory.budget_bytes, 0), unit="byte", source="memory.budget_bytes"
    )
    return (*found, budget)


#: Parts of the total.
PARTS = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "framework_bytes", "cuda_graphs_bytes")
SOURCES = {
    "activations_bytes": "peak over both stages, and a vision tower, of the live tensors (analysis/memory.py), of "
    "llama.cpp its compute buffers (analysis/compute_buffers.py)",
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
    TABLE_ON_HOST: "the host looks up tokens, so that the device has no table of them (analysis/compute_buffers.py)",
    "padding of MXFP4 experts": "sizes of experts rounded up by the engine (analysis/engine_parts.py)",
}
#: Rests of a sum: their names and sources.
OTHER_WEIGHTS = "other weights", "weights of draft models that store parts of this one (analysis/capacity.py)"
OTHER_CACHES = (
    "other caches",
    "caches of branches, of an encoder's input, or of draft models on another device (analysis/capacity.py), or cells "
    "that an engine allocates for no token",
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
        if not system.margin_bytes:
            return _node("budget_bytes", value, "capacity_bytes * share", source, (capacity, share))
        free = system.engine.free_memory
        assert free is not None
        words = f"{free.margin_gib:g} GiB stay free, the context of CUDA among them ({free.source})"
        margin = Node(name="margin_bytes", value=system.margin_bytes, unit="byte", source=words)
        return _node("budget_bytes", value, "capacity_bytes - margin_bytes", source, (capacity, margin))
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
