"""Reduces the layers of a published config, keeping every kind of layer and real widths, for both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fields = dict[str, Any]

DEPTH_FIELDS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
PATTERN_FIELDS = ("hybrid_override_pattern",)
LAYER_INDEX_FIELDS = ("moe_layers", "mlp_only_layers")
WINDOW_FIELDS = ("sliding_window", "sliding_window_size", "attention_chunk_size")


def nothing_else(fields: Fields, resolved: Any) -> Fields:
    """No reduction beyond depth and per-layer lists."""
    return fields


def windows_from_second_layer(fields: Fields, resolved: Any) -> Fields:
    """Qwen: where windows are in use they start at `max_window_layers`; this is set to the second layer."""
    return {**fields, "max_window_layers": 1} if fields.get("use_sliding_window") else fields


def shared_tail(fields: Fields, resolved: Any) -> Fields:
    """Gemma 4: one period of layers with their own cache, then one period of layers that share it."""
    if not resolved.num_kv_shared_layers:
        return fields
    period = resolved.layer_types.index("full_attention") + 1
    types = resolved.layer_types[: 2 * period]
    return {**fields, "num_hidden_layers": 2 * period, "layer_types": types, "num_kv_shared_layers": period}


def shared_tail_of_lists(fields: Fields, resolved: Any) -> Fields:
    """Gemma 3n: as Gemma 4, and the lists that must have one entry per layer."""
    short = shared_tail(fields, resolved)
    names = ("intermediate_size", "activation_sparsity_pattern")
    return {**short, **{name: getattr(resolved, name)[: short["num_hidden_layers"]] for name in names}}


def two_layers_per_stack(fields: Fields, resolved: Any) -> Fields:
    """HRM: two layers in each stack, and as many layers as its stacks run in all."""
    return {**fields, "num_layers_per_stack": 2, "num_hidden_layers": 2 * resolved.H_cycles * (resolved.L_cycles + 1)}


def first_layers(fields: Fields, full_depth: int, depth: int) -> Fields:
    """The config of the first `depth` layers: depth fields, per-layer lists and patterns, lists of layer indices."""
    shortened = {
        name: value[:depth] if _per_layer(name, value, full_depth) else value for name, value in fields.items()
    }
    for name in LAYER_INDEX_FIELDS:
        if isinstance(fields.get(name), list):
            shortened[name] = [layer for layer in fields[name] if layer < depth]
    if isinstance(fields.get("per_layer_config"), Mapping):
        stated = fields["per_layer_config"].items()
        shortened["per_layer_config"] = {layer: value for layer, value in stated if int(layer) < depth}
    if isinstance(fields.get("linear_attn_config"), Mapping):  # Kimi Linear: lists of layers, counted from 1
        stated = fields["linear_attn_config"].items()
        shortened["linear_attn_config"] = {
            name: [layer for layer in value if layer <= depth] if isinstance(value, list) else value
            for name, value in stated
        }
    present = [name for name in DEPTH_FIELDS if name in fields] or ["num_hidden_layers"]
    return {**shortened, **dict.fromkeys(present, depth)}


def narrowed(config: Mapping[str, Any], window: int) -> Fields:
    """The config with every window in use set to `window` tokens, to exercise it with short contexts."""
    if "text_config" in config:
        return {**config, "text_config": narrowed(config["text_config"], window)}
    return {name: window if name in WINDOW_FIELDS and value else value for name, value in config.items()}


def _per_layer(name: str, value: Any, full_depth: int) -> bool:
    """True if a field is a list or a pattern with one entry per layer."""
    return (isinstance(value, list) or name in PATTERN_FIELDS) and len(value) == full_depth
