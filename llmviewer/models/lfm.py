"""Liquid foundation models: gated short convolutions, with attention in some layers (arXiv 2511.23404)."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import QkNorm
from llmviewer.layers.decoder import Mixer
from llmviewer.layers.feed_forward import Mlp, Moe
from llmviewer.layers.recurrent import GatedConv
from llmviewer.models import parts
from llmviewer.models.config import Config, head_size, hidden_size, layer_count, rotary_dim_by_type
from llmviewer.models.decoder import Decoder

#: Entries of `layer_types`.
WORDS = {"conv": "conv", "full_attention": "full"}
WORDS_OF_LFM3 = WORDS | {"sliding_attention": "sliding"}
#: Share of a head that rope rotates in LFM3, by type of layer.
ROTATED_IN_LFM3 = {"full": 0.5, "sliding": 1.0}
#: Fields of the published files that the class does not read.
UNREAD = (
    "block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu block_use_xavier_init "
    "conv_dim conv_dim_out conv_use_xavier_init num_heads use_pos_enc theta full_attn_idxs"
)


#: The attention of all of them: QK-norm per head.
_NORMED = Decoder(qk_norm=QkNorm.PER_HEAD)


def _conv(config: Config, dtype: Dtype, kernel: int) -> GatedConv:
    return GatedConv(
        hidden=hidden_size(config),
        kernel=config.count("conv_L_cache", kernel),
        dtype=dtype,
        bias=config.flag("conv_bias", default=False),
    )


def _mixers(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    return {"full": _NORMED.attention(config, dtype), "conv": _conv(config, dtype, kernel=3)}


def _dense(config: Config, dtype: Dtype) -> Mlp:
    return parts.mlp(config, dtype, _width(config))


def _experts(config: Config, dtype: Dtype) -> Moe:
    experts = parts.moe(config, dtype, config.count("moe_intermediate_size", 1792))
    return replace(experts, correction_bias=config.flag("use_expert_bias", default=True))


def _words(config: Config) -> list[str]:
    """Mixer of every layer: `layer_types`, else attention in the layers of `full_attn_idxs`, else everywhere."""
    depth = layer_count(config)
    if config.has("layer_types"):
        return [WORDS[word] for word in config.words("layer_types", WORDS, depth)]
    listed = config.numbers("full_attn_idxs", range(depth))
    return ["full" if layer in listed else "conv" for layer in range(depth)]


def _width(config: Config) -> int:
    """Width of a dense MLP: two thirds of the stated one, times a factor, rounded up to a multiple."""
    width = config.count(config.first_present("block_ff_dim", "intermediate_size"))
    config.ignore("intermediate_size")  # the older name, block_ff_dim, goes before it
    factor, multiple = config.number("block_ffn_dim_multiplier", 1.0), config.count("block_multiple_of", 256)
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(2 * width / 3)
    if "block_ffn_dim_multiplier" in config.fields and not config.has("block_ffn_dim_multiplier"):
        return width  # an explicit null
    return -(-int(factor * width) // multiple) * multiple


def _tied(config: Config) -> None:
    config.defaults(tie_word_embeddings=config.get("tie_embedding", True))


#: Lfm2ForCausalLM: dense MLPs, whose stated width is made smaller if `block_auto_adjust_ff_dim` is set.
LFM2 = Decoder(
    defaults={"num_key_value_heads": 8},
    constants={"sliding_window": None},
    ignored=UNREAD,
    prepare=_tied,
    mixers=_mixers,
    types=_words,
    dense=_dense,
)


def _first_dense(config: Config) -> list[str]:
    config.words("layer_types", WORDS, layer_count(config))  # has no default
    dense = config.count("num_dense_layers", 2, minimum=0)
    return ["dense" if layer < dense else "moe" for layer in range(layer_count(config))]


#: Lfm2MoeForCausalLM: dense MLPs in the first layers, then experts.
LFM2_MOE = replace(
    LFM2,
    defaults={
        **LFM2.defaults,
        **{"block_auto_adjust_ff_dim": False, "num_experts": 32, "num_experts_per_tok": 4},
    },
    experts=_experts,
    placement=_first_dense,
)


def _lfm3_types(config: Config) -> list[str]:
    depth = layer_count(config)
    default = ["full" if at % 4 == 2 else "sliding" if at % 4 == 0 and at else "conv" for at in range(depth)]
    listed = config.words("layer_types", WORDS_OF_LFM3, depth) if config.has("layer_types") else ()
    return [WORDS_OF_LFM3[word] for word in listed] or default


def _lfm3_mixers(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    attention = replace(_NORMED, head_dim=head_size(config, 128)).attention(config, dtype)
    gated = config.flag("use_attention_gate", default=True)
    rotary = {
        kind: rotary_dim_by_type(config, kind, attention.head_dim, factor) for kind, factor in ROTATED_IN_LFM3.items()
    }
    full = replace(attention, gate=gated, gate_width=int(gated), rotary_dim=rotary["full"])
    sliding = replace(full, window=float(config.count("sliding_window", 256)), rotary_dim=rotary["sliding"])
    return {"full": full, "sliding": sliding, "conv": _conv(config, dtype, kernel=7)}


#: Lfm3ForCausalLM: convolutions beside windowed and full attention with a gate per head; norms after branches.
LFM3 = Decoder(
    defaults={"num_key_value_heads": 4, "tie_word_embeddings": True, "use_sandwich_norm": True},
    mixers=_lfm3_mixers,
    types=_lfm3_types,
    around_if="use_sandwich_norm",
)
