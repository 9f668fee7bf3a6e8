"""Config fields that most architectures share: sizes under their various names, and the type of every layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmviewer.core.errors import UserError
from llmviewer.models.config import MAX_FIELD_VALUE, Config

#: Stands for "no limit" where a config states no maximum context.
ABSENT_CONTEXT = 10**8
#: A larger depth is a typing error; parsers list the layers one by one.
MAX_LAYERS = 10**4


def hidden_size(config: Config) -> int:
    """Width of the residual stream."""
    return _size(config, "hidden_size", "n_embd", "n_embed", "d_model")


def head_count(config: Config) -> int:
    """Number of query heads."""
    return _size(config, "num_attention_heads", "n_head", "n_heads")


def head_size(config: Config, default: int | None = None) -> int:
    """Elements per head: `head_dim`, else the class's `default`, else hidden_size / heads."""
    if config.has("head_dim") or default:
        return config.count("head_dim", default)
    hidden, heads = hidden_size(config), head_count(config)
    _check_divisible(config, "elements of hidden_size", hidden, heads, "heads")
    return hidden // heads


def kv_head_count(config: Config) -> int:
    """Number of key-value heads; equal to the number of query heads if not stated."""
    heads = head_count(config)
    return group_count(config, "num_key_value_heads", heads, heads=heads)


def group_count(config: Config, name: str, default: int | None = None, *, heads: int) -> int:
    """Groups (or key-value heads) stated in the field `name`; `heads` must be a multiple of it."""
    groups = config.count(name, default, maximum=heads)
    _check_divisible(config, "heads", heads, groups, name)
    return groups


def _check_divisible(config: Config, name: str, value: int, divisor: int, divisor_name: str) -> None:
    if value % divisor:
        raise UserError(f"{config.where}: {value} {name} are not divisible by {divisor} {divisor_name}")


def layer_count(config: Config) -> int:
    """Number of decoder layers."""
    return _size(config, "num_hidden_layers", "n_layer", "n_layers", maximum=MAX_LAYERS)


def _size(config: Config, *names: str, maximum: int = MAX_FIELD_VALUE) -> int:
    """A size that architectures name differently; if a config has several of the names, their values must agree."""
    stated = {name: config.count(name, maximum=maximum) for name in names if config.has(name)}
    if len(set(stated.values())) > 1:
        raise UserError(f"{config.where}: fields {', '.join(stated)} disagree")
    return next(iter(stated.values())) if stated else config.count(names[0])


def max_context(config: Config) -> float:
    """Longest supported context [tokens]: `model_max_length` (Command-R), else the smallest of the usual fields.

    The default of the class counts only where the config states none of them.
    """
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_sequence_length")
    stated = [config.count(name) for name in names if config.has(name)]
    smallest = min(stated) if stated else config.count(names[0], ABSENT_CONTEXT)
    return float(config.count("model_max_length", smallest))


def window(config: Config) -> float:
    """Sliding window [tokens], including the query's own; inf if `sliding_window` is null or missing."""
    return float(config.count("sliding_window")) if config.has("sliding_window") else np.inf


def rotary_dim(config: Config, head_dim: int, *, factor: float = 1.0) -> int:
    """Rotated elements per head: head_dim x `partial_rotary_factor`, a top-level field or one of `rope_parameters`."""
    rope = config.get("rope_parameters")
    nested = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
    return int(head_dim * config.fraction("partial_rotary_factor", nested or factor))


def rotary_dim_by_type(config: Config, layer_type: str, head_dim: int, factor: float) -> int:
    """Rotated elements per head in layers of a type (`full`, `sliding`), which have rope parameters of their own.

    factor: the share that is rotated if the config states no rope parameters.
    """
    if config.has("rope_parameters"):
        rope = config.section("rope_parameters").section(f"{layer_type}_attention")
        rope.ignore("rope_theta", "rope_type")
        factor = rope.fraction("partial_rotary_factor", 1.0)
    return int(head_dim * factor)


def layer_types(config: Config, allowed: tuple[str, ...], default: Sequence[str]) -> list[str]:
    """Type of every layer, one of `allowed` (`full`, `sliding`, `linear`): `layer_types`, else the class's default."""
    if not config.has("layer_types"):
        return list(default)
    words = config.words("layer_types", tuple(f"{word}_attention" for word in allowed), len(default))
    return [word.removesuffix("_attention") for word in words]


def binary_layer_list(config: Config, name: str, words: tuple[str, str]) -> list[str]:
    """A list field with 0 or 1 for every layer, as the words for 0 and 1."""
    flags, layers = config.numbers(name), layer_count(config)
    if len(flags) < layers or not set(flags) <= {0, 1}:
        raise UserError(f"{config.where}: field '{name}' must list 0 or 1 for {layers} layers")
    return [words[flag] for flag in flags[:layers]]


def sliding_or_full(config: Config, period: int) -> list[str]:
    """`full` for every `period`-th layer, else `sliding`; the config may list the types or state another period."""
    name = config.first_present("sliding_window_pattern", "_sliding_window_pattern")
    period = config.count(name, period)
    default = ["sliding" if (layer + 1) % period else "full" for layer in range(layer_count(config))]
    return layer_types(config, ("sliding", "full"), default)


def rope_layers(config: Config) -> list[bool]:
    """Whether each layer has rope: all but every `no_rope_layer_interval`-th, or as `no_rope_layers` lists.

    In spite of its name, `no_rope_layers` has 1 for layers with rope.
    """
    depth, period = layer_count(config), config.count("no_rope_layer_interval", 4)
    flags = config.numbers("no_rope_layers") or [int((layer + 1) % period > 0) for layer in range(depth)]
    if len(flags) < depth or not set(flags) <= {0, 1}:
        raise UserError(f"{config.where}: field 'no_rope_layers' must list 0 or 1 for {depth} layers")
    return [flag == 1 for flag in flags[:depth]]
