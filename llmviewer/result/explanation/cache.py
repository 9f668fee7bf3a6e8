"""KV cache of a workload as a tree: layers x sequences x tokens x elements of a token, by fields of the config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmviewer.analysis.admission import stored_request
from llmviewer.analysis.analysis import Analysis
from llmviewer.core.ir import Block, Place, State
from llmviewer.core.workload import Request
from llmviewer.layers.attention import Attention
from llmviewer.layers.gated_delta_net import GatedDeltaNet
from llmviewer.layers.mamba import Mamba, Mamba2
from llmviewer.layers.mla import Mla
from llmviewer.result.explanation.metrics import Question
from llmviewer.result.explanation.node import Node, of_formula
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
    yield from _states(own, _stored(one, request))
    for draft, drafting in one.drafts:
        if draft.caches:
            for node in _states(drafting.analysis, _stored(drafting, request)):
                yield replace(node, name=f"draft {draft.name}: {node.name}")


def _states(own: Analysis, stored: Stored) -> Iterator[Node]:
    """The states of all layers of one model on a device."""
    for block in own.passes.graph.blocks:
        for state in block.states:
            if state.place is Place.DEVICE:
                yield from _state(own, block, state, stored)


def _stored(one: Question, request: Request) -> Stored:
    """The part of the sequences of all replicas that one replica stores."""
    own, generation = one.analysis, one.analysis.system.generation
    replica = own.system.parallelism.replica(request)
    batch, prompt, output = (one.at(size) for size in (replica.batch_size, replica.input_len, replica.output_len))
    spare = one.at(generation.spare_tokens)
    values = {"input_len": prompt, "output_len": output, **({"spare": spare} if spare else {})}
    context = of_formula("context", " + ".join(values) + " - 1", (), CONTEXT, values, "")
    if generation.denoising is not None:
        cached = float(np.max(generation.denoising.cached_tokens(context.value)))
        context = Node(name="context", value=cached, source="tokens of decided blocks (serving/denoising.py)")
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
