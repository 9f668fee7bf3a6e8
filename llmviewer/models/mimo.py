"""MiMo-V2-Flash: short windows with sinks in most layers, values narrower than keys, many experts."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import FeedForward
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import shared_heads
from llmviewer.ops.norm import rms_norm

#: Entries of `hybrid_layer_pattern` and of `moe_layer_freq` in the published config.
ATTENDS, FEEDS = ("full", "sliding"), ("dense", "moe")


def parse(config: Config, dtype: Dtype) -> Model:
    """MiMoV2FlashForCausalLM: sliding layers have twice the heads of keys and values, and sinks."""
    config.expect("topk_method", "noaux_tc")
    config.ignore("attention_chunk_size", "swa_rope_theta")  # the chunk is the window of sliding layers
    config.ignore("attention_value_scale")  # one factor for all values, which o_proj can hold
    full = _full(config, dtype)
    dense = parts.mlp(config, dtype, config.count("intermediate_size"))
    experts = replace(parts.moe(config, dtype, config.count("moe_intermediate_size")), correction_bias=True)
    types = parts.flagged(config, "hybrid_layer_pattern", ATTENDS)
    kinds = list(zip(types, parts.flagged(config, "moe_layer_freq", FEEDS), strict=True))
    feed_forwards: dict[str, FeedForward] = {"dense": dense, "moe": experts}
    mixers = {"full": full, "sliding": _sliding(config, full)}
    layers = parts.by_kind(kinds, parts.pre_norms(config, dtype), mixers, feed_forwards)
    return parts.model(config, dtype, layers, rms_norm("final_norm", full.hidden, dtype))


def _full(config: Config, dtype: Dtype) -> Attention:
    bias = config.flag("attention_bias", default=False)
    attention = parts.attention(config, dtype, Projections(qkv_bias=bias))
    v_dim = config.count("v_head_dim", attention.head_dim)
    return replace(attention, v_dim=v_dim, sinks=config.flag("add_full_attention_sink_bias", default=False))


def _sliding(config: Config, full: Attention) -> Attention:
    """A query sees `sliding_window_size` tokens before it and itself, as the reference implementation has it."""
    config.ignore("sliding_window")
    heads = config.count("swa_num_attention_heads", full.heads)
    return replace(
        full,
        heads=heads,
        kv_heads=shared_heads(config, "swa_num_key_value_heads", 2 * full.kv_heads, serve=heads),
        head_dim=config.count("swa_head_dim", full.head_dim),
        v_dim=config.count("swa_v_head_dim", full.v_dim),
        window=config.count("sliding_window_size") + 1.0,
        sinks=config.flag("add_swa_attention_sink_bias", default=True),
    )
