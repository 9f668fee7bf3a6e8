"""MiMo-V2-Flash: short windows with sinks in most layers, values narrower than keys, many experts."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import FeedForward
from llmviewer.models import parts
from llmviewer.models.config import Config, binary_layer_list, group_count
from llmviewer.models.layer_patterns import FullEvery
from llmviewer.models.model import Model
from llmviewer.models.sparse_decoder import listed_or_first_dense
from llmviewer.ops.elementwise import rms_norm

#: Meaning of 0 and 1 in `hybrid_layer_pattern` and in `moe_layer_freq` of the published config.
ATTENTION_TYPES, FEED_FORWARD_TYPES = ("full", "sliding"), ("dense", "moe")


def parse_mimo_v2_flash(config: Config, dtype: Dtype) -> Model:
    """MiMoV2FlashForCausalLM: sliding layers have sinks and twice as many key-value heads."""
    config.expect("topk_method", "noaux_tc")
    config.ignore("attention_chunk_size", "swa_rope_theta")  # the chunk size equals the window of sliding layers
    config.ignore("attention_value_scale")  # one factor for all values, which can be folded into o_proj
    full = _full(config, dtype)
    dense = parts.mlp(config, dtype, config.count("intermediate_size"))
    experts = replace(parts.moe(config, dtype, config.count("moe_intermediate_size")), correction_bias=True)
    kinds = list(zip(_types(config), _feed_forwards(config), strict=True))
    feed_forwards: dict[str, FeedForward] = {"dense": dense, "moe": experts}
    mixers = {"full": full, "sliding": _sliding(config, full)}
    layers = parts.layers_by_kind(kinds, parts.pre_norms(config, dtype), mixers, feed_forwards)
    return parts.model(config, dtype, layers, rms_norm("final_norm", full.hidden, dtype))


def _types(config: Config) -> list[str]:
    """The attention of every layer, in the checkpoint's 0/1 list or in transformers' `layer_types`."""
    if config.has("hybrid_layer_pattern"):
        return binary_layer_list(config, "hybrid_layer_pattern", ATTENTION_TYPES)
    return FullEvery("", 6)(config) if config.has("layer_types") else _first_full(FullEvery("", 6)(config))


def _first_full(types: list[str]) -> list[str]:
    return ["full", *types[1:]]


def _feed_forwards(config: Config) -> list[str]:
    if isinstance(config.get("moe_layer_freq"), list):
        return binary_layer_list(config, "moe_layer_freq", FEED_FORWARD_TYPES)
    return listed_or_first_dense(config)


def _full(config: Config, dtype: Dtype) -> Attention:
    bias = config.flag("attention_bias", default=False)
    attention = parts.attention(config, dtype, Projections(qkv_bias=bias))
    v_dim = config.count("v_head_dim", attention.head_dim)
    return replace(attention, v_dim=v_dim, sinks=config.flag("add_full_attention_sink_bias", default=False))


def _sliding(config: Config, full: Attention) -> Attention:
    """Sliding layers have sinks and twice as many key-value heads."""
    heads = config.count("swa_num_attention_heads", full.heads)
    return replace(
        full,
        heads=heads,
        kv_heads=group_count(config, "swa_num_key_value_heads", 2 * full.kv_heads, heads=heads),
        head_dim=config.count("swa_head_dim", full.head_dim),
        v_dim=config.count("swa_v_head_dim", full.v_dim),
        window=_window(config),
        sinks=config.flag("add_swa_attention_sink_bias", default=True),
    )


def _window(config: Config) -> float:
    """A query sees `sliding_window_size` earlier tokens and itself; transformers' `sliding_window` counts itself."""
    config.ignore("sliding_window")
    if config.has("sliding_window_size"):
        return config.count("sliding_window_size") + 1.0
    return float(config.count("sliding_window"))
