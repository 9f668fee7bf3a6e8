"""MiniMax-Text-01, lightning and softmax attention in turn, and MiniMax-M2, softmax attention alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention, Projections, QkNorm
from llmviewer.layers.decoder import Mixer, Residual
from llmviewer.layers.lightning import LightningAttention
from llmviewer.layers.moe import Moe
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import layer_count
from llmviewer.ops.elementwise import activation
from llmviewer.ops.norm import rms_norm

#: Entries of `attn_type_list`.
TYPES = ("linear", "full")


def parse_text_01(config: Config, dtype: Dtype) -> Model:
    """MiniMaxText01ForCausalLM, the fields of the published config."""
    config.expect("postnorm", True)
    kinds = ("full_attention", "linear_attention", "mlp")
    factors = _factors(config, tuple(f"layernorm_{kind}_{factor}" for kind in kinds for factor in ("alpha", "beta")))
    return _text(config, dtype, parts.flagged(config, "attn_type_list", TYPES), factors)


def parse_minimax(config: Config, dtype: Dtype) -> Model:
    """MiniMaxForCausalLM, the same model in the library's fields."""
    config.ignore("block_size")  # of the chunked scan
    names = tuple(f"{kind}_{way}_factor" for kind in ("full_attn", "linear_attn", "mlp") for way in ("alpha", "beta"))
    rule = ["linear" if layer % 2 else "full" for layer in range(layer_count(config))]
    return _text(config, dtype, parts.layer_types(config, ("linear", "full"), rule), _factors(config, names))


def parse_m2(config: Config, dtype: Dtype) -> Model:
    """MiniMaxM2ForCausalLM: norms over all heads of queries and keys, experts chosen with a stored bias."""
    config.expect("qk_norm_type", "per_layer")
    config.expect("use_qk_norm", True)
    config.expect("use_routing_bias", True)
    config.ignore("mlp_intermediate_size")  # of dense layers, of which there are none
    if config.has("attn_type_list") and "linear" in parts.flagged(config, "attn_type_list", TYPES):
        raise UserError(f"{config.where}: attn_type_list has lightning attention, expected softmax attention alone")
    attention = replace(_attention(config, dtype), qk_norm=QkNorm.WHOLE)
    experts = replace(_experts(config, dtype), correction_bias=True)
    layers = parts.alike(config, parts.pre_norms(config, dtype), attention, experts)
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))


def _factors(config: Config, names: tuple[str, ...]) -> float:
    """FLOP per element of a residual sum: one, and one for each side that is scaled."""
    scaled = [config.number(name, 1.0) != 1.0 for name in names]
    return 1.0 + float(any(scaled[::2])) + float(any(scaled[1::2]))


def _attention(config: Config, dtype: Dtype) -> Attention:
    config.expect("sliding_window", None)
    attention = parts.attention(config, dtype, Projections())
    return replace(attention, rotary_dim=config.count("rotary_dim", attention.rotary_dim, most=attention.head_dim))


def _experts(config: Config, dtype: Dtype) -> Moe:
    config.expect("shared_intermediate_size", 0)
    config.ignore("shared_moe_mode")
    return parts.moe(config, dtype, config.count("intermediate_size"))


def _text(config: Config, dtype: Dtype, types: Sequence[str], residual_flops: float) -> Model:
    """The residual stream is normalised before each part, and the sum takes it so."""
    attention = _attention(config, dtype)
    lightning = LightningAttention(
        hidden=attention.hidden,
        heads=attention.heads,
        head_dim=attention.head_dim,
        activation=activation(config.text("hidden_act", "silu")),
        dtype=dtype,
    )
    mixers: dict[str, Mixer] = {"linear": lightning, "full": attention}
    kinds = [(word, "moe") for word in types]
    plain = parts.by_kind(kinds, parts.pre_norms(config, dtype), mixers, {"moe": _experts(config, dtype)})
    layers = tuple(replace(layer, residual=Residual.NORMED, residual_flops=residual_flops) for layer in plain)
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))
