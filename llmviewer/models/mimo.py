"""MiMo-V2-Flash: short windows with sinks in most layers, values narrower than keys, many experts."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Projections
from llmviewer.layers.decoder import Mixer
from llmviewer.models import parts
from llmviewer.models.config import Config, binary_layer_list, group_count
from llmviewer.models.decoder import Decoder
from llmviewer.models.experts import listed_or_first_dense
from llmviewer.models.layer_patterns import FullEvery

#: Meaning of 0 and 1 in `hybrid_layer_pattern` and in `moe_layer_freq` of the published config.
ATTENTION_TYPES, FEED_FORWARD_TYPES = ("full", "sliding"), ("dense", "moe")


def _types(config: Config) -> list[str]:
    """The attention of every layer, in the checkpoint's 0/1 list or in transformers' `layer_types`."""
    if config.has("hybrid_layer_pattern"):
        return binary_layer_list(config, "hybrid_layer_pattern", ATTENTION_TYPES)
    types = FullEvery("", 6)(config)
    return types if config.has("layer_types") else ["full", *types[1:]]


def _feed_forwards(config: Config) -> list[str]:
    if isinstance(config.get("moe_layer_freq"), list):
        return binary_layer_list(config, "moe_layer_freq", FEED_FORWARD_TYPES)
    return listed_or_first_dense(config)


def _attention(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """Full attention, and that with a window, which has sinks and twice as many key-value heads."""
    bias = config.flag("attention_bias", default=False)
    plain = parts.attention(config, dtype, Projections(qkv_bias=bias))
    v_dim = config.count("v_head_dim", plain.head_dim)
    full = replace(plain, v_dim=v_dim, sinks=config.flag("add_full_attention_sink_bias", default=False))
    heads = config.count("swa_num_attention_heads", full.heads)
    sliding = replace(
        full,
        heads=heads,
        kv_heads=group_count(config, "swa_num_key_value_heads", 2 * full.kv_heads, heads=heads),
        head_dim=config.count("swa_head_dim", full.head_dim),
        v_dim=config.count("swa_v_head_dim", full.v_dim),
        window=_window(config),
        sinks=config.flag("add_swa_attention_sink_bias", default=True),
    )
    return {"full": full, "sliding": sliding}


def _window(config: Config) -> float:
    """A query sees `sliding_window_size` earlier tokens and itself; transformers' `sliding_window` counts itself."""
    config.ignore("sliding_window")
    if config.has("sliding_window_size"):
        return config.count("sliding_window_size") + 1.0
    return float(config.count("sliding_window"))


#: MiMoV2FlashForCausalLM: sliding layers have sinks and twice as many key-value heads.
MIMO_V2_FLASH = Decoder(
    constants={"topk_method": "noaux_tc"},
    # the chunk size equals the window of sliding layers; one factor for all values can be folded into o_proj
    ignored="attention_chunk_size swa_rope_theta attention_value_scale",
    mixers=_attention,
    types=_types,
    mlp_bias=False,
    experts=parts.corrected_moe,
    placement=_feed_forwards,
)
