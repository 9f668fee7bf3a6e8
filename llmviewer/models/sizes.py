"""The sizes of a model under the names that different architectures give them."""

from __future__ import annotations

import numpy as np

from llmviewer.core.errors import UserError
from llmviewer.models.config import ABSURD, Config

#: A config that states no maximum context has none.
ABSENT_CONTEXT = 10**8
#: Deeper than this is a typing error; parsers list the layers one by one.
MOST_LAYERS = 10**4


def hidden_size(config: Config) -> int:
    """Width of the residual stream."""
    return _size(config, "hidden_size", "n_embd", "n_embed", "d_model")


def head_count(config: Config) -> int:
    """Query heads."""
    return _size(config, "num_attention_heads", "n_head", "n_heads")


def head_size(config: Config, default: int | None = None) -> int:
    """Elements of a head: as stated, else the class's `default`, else an equal share of the width."""
    if config.has("head_dim") or default:
        return config.count("head_dim", default)
    hidden, heads = hidden_size(config), head_count(config)
    _check_equal_shares(config, "elements of hidden_size", hidden, heads, "heads")
    return hidden // heads


def kv_head_count(config: Config) -> int:
    """Heads of keys and values, each for the same number of query heads; where the config is silent, as many."""
    heads = head_count(config)
    return shared_heads(config, "num_key_value_heads", heads, serve=heads)


def shared_heads(config: Config, name: str, default: int | None = None, *, serve: int) -> int:
    """Heads (or groups of them) in the field `name` that each serve the same number of `serve` heads."""
    heads = config.count(name, default, most=serve)
    _check_equal_shares(config, "heads", serve, heads, name)
    return heads


def _check_equal_shares(config: Config, name: str, whole: int, parts: int, of: str) -> None:
    if whole % parts:
        raise UserError(f"{config.where}: {whole} {name} cannot be shared equally by {parts} {of}")


def layer_count(config: Config) -> int:
    """Decoder layers."""
    return _size(config, "num_hidden_layers", "n_layer", "n_layers", most=MOST_LAYERS)


def _size(config: Config, *names: str, most: int = ABSURD) -> int:
    """One size that architectures spell differently; spellings that stand side by side must agree."""
    stated = {name: config.count(name, most=most) for name in names if config.has(name)}
    if len(set(stated.values())) > 1:
        raise UserError(f"{config.where}: fields {', '.join(stated)} disagree")
    return next(iter(stated.values())) if stated else config.count(names[0])


def max_context(config: Config) -> float:
    """Tokens the model was made for: `model_max_length` (Command-R), else the shortest of the usual spellings."""
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_sequence_length")
    shortest = min(config.count(name, ABSENT_CONTEXT) for name in names)
    return float(config.count("model_max_length", shortest))


def window(config: Config) -> float:
    """Tokens a query of a sliding layer sees, itself included; null (or missing) is all."""
    return float(config.count("sliding_window")) if config.has("sliding_window") else np.inf


def rotary_dim(config: Config, head_dim: int, *, factor: float = 1.0) -> int:
    """Rotated elements per head: `partial_rotary_factor` of them, beside or inside `rope_parameters`."""
    rope = config.get("rope_parameters")
    inner = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
    return int(head_dim * config.fraction("partial_rotary_factor", inner or factor))
