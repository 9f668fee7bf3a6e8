"""Fields that distinguish the layers of one model, read from the library's resolved config object.

Each function gives one label per layer. A family lists the functions that apply to it; a layer's kind is the tuple of
its labels, and a reduced model keeps the first layers up to the one where the last new kind appears.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

Labels = Sequence[Hashable]
LayerLabels = Callable[[Any], Labels]

SHALLOWEST = 2
"""Even a uniform model keeps two layers, so that a count that forgets to multiply by the depth is seen."""


def layer_types(resolved: Any) -> Labels:
    """Names used by the library: full_attention, sliding_attention, chunked_attention, linear_attention, moe, mlp."""
    return tuple(resolved.layer_types)


def mlp_types(resolved: Any) -> Labels:
    """Label per layer, dense or sparse, from the list in the config object."""
    return tuple(resolved.mlp_layer_types)


def rotary_layers(resolved: Any) -> Labels:
    """SmolLM3: 1 where a layer rotates queries and keys, 0 where it does not."""
    return tuple(resolved.no_rope_layers)


def expert_counts(resolved: Any) -> Labels:
    """Jamba: experts per layer, 1 for a dense FFN."""
    return tuple(resolved.layers_num_experts)


def dense_first(resolved: Any) -> Labels:
    """DeepSeek and its descendants: `first_k_dense_replace` dense layers, experts in the others."""
    return [layer >= resolved.first_k_dense_replace for layer in range(resolved.num_hidden_layers)]


def listed_experts(resolved: Any) -> Labels:
    """Llama 4: `moe_layers` lists the layers with experts."""
    return [layer in resolved.moe_layers for layer in range(resolved.num_hidden_layers)]


def sparse_step(resolved: Any) -> Labels:
    """Qwen MoE: every `decoder_sparse_step`-th layer has experts, except those in `mlp_only_layers`."""
    dense = resolved.mlp_only_layers or []
    return [
        layer not in dense and (layer + 1) % resolved.decoder_sparse_step == 0
        for layer in range(resolved.num_hidden_layers)
    ]


def cache_sharing(resolved: Any) -> Labels:
    """Gemma 4 (E2B, E4B): the last layers take keys and values from earlier ones."""
    first_shared = resolved.num_hidden_layers - (resolved.num_kv_shared_layers or 0)
    return [layer >= first_shared for layer in range(resolved.num_hidden_layers)]


def every_layer(resolved: Any) -> Labels:
    """HRM: the number of layers follows from the runs of its stacks, which a cut shortens; none can be left out."""
    return range(resolved.num_hidden_layers)


def shared_calls(resolved: Any) -> Labels:
    """Zamba: the first layer with a shared block, later ones that share its weights, and Mamba layers."""
    types = list(resolved.layers_block_type)
    return [(kind, kind in types[:layer]) for layer, kind in enumerate(types)]


def listed(resolved: Any) -> Labels:
    """Entries of all per-layer lists of the config object, and whether a layer is among the first dense ones."""
    depth = resolved.num_hidden_layers
    lists = [value for value in vars(resolved).values() if isinstance(value, list) and len(value) == depth]
    dense = getattr(resolved, "first_k_dense_replace", None) or 0
    return [(layer >= dense, *(str(value[layer]) for value in lists)) for layer in range(depth)]


def covering_depth(resolved: Any, labels: Sequence[LayerLabels]) -> int:
    """The smallest number of first layers that contain every kind of layer."""
    depth: int = resolved.num_hidden_layers
    kinds = list(zip(*(label(resolved) for label in labels), strict=True)) if labels else [()] * depth
    last_new = max(kinds.index(kind) for kind in set(kinds))
    return min(depth, max(SHALLOWEST, last_new + 1))
