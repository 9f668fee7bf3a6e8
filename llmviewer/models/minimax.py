"""MiniMax-Text-01 (lightning and softmax attention) and MiniMax-M2 (only softmax attention)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention, Projections, QkNorm
from llmviewer.layers.decoder import Mixer, Residual
from llmviewer.layers.feed_forward import Moe
from llmviewer.layers.linear_attention import LightningAttention
from llmviewer.models import parts
from llmviewer.models.config import Config, binary_layer_list, layer_count, layer_types
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation, rms_norm

#: Meaning of 0 and 1 in `attn_type_list`.
ATTENTION_TYPES = ("linear", "full")


def parse_minimax_text_01(config: Config, dtype: Dtype) -> Model:
    """MiniMaxText01ForCausalLM, with the fields of the published config."""
    config.expect("postnorm", True)
    kinds = ("full_attention", "linear_attention", "mlp")
    flops = _residual_flops(
        config, tuple(f"layernorm_{kind}_{factor}" for kind in kinds for factor in ("alpha", "beta"))
    )
    return _text_01(config, dtype, binary_layer_list(config, "attn_type_list", ATTENTION_TYPES), flops)


def parse_minimax(config: Config, dtype: Dtype) -> Model:
    """MiniMaxForCausalLM: MiniMax-Text-01 with the field names of transformers."""
    config.ignore("block_size")  # part of the chunked scan
    names = tuple(f"{kind}_{side}_factor" for kind in ("full_attn", "linear_attn", "mlp") for side in ("alpha", "beta"))
    rule = ["linear" if layer % 2 else "full" for layer in range(layer_count(config))]
    return _text_01(config, dtype, layer_types(config, ("linear", "full"), rule), _residual_flops(config, names))


def parse_minimax_m2(config: Config, dtype: Dtype) -> Model:
    """MiniMaxM2ForCausalLM: QK-norm over all heads together, experts chosen with a stored bias."""
    config.expect("qk_norm_type", "per_layer")
    config.expect("use_qk_norm", True)
    config.expect("use_routing_bias", True)
    config.ignore("mlp_intermediate_size")  # no layer is dense
    if config.has("attn_type_list") and "linear" in binary_layer_list(config, "attn_type_list", ATTENTION_TYPES):
        raise UserError(f"{config.where}: attn_type_list has lightning attention, expected only softmax attention")
    attention = replace(_attention(config, dtype), qk_norm=QkNorm.WHOLE)
    experts = replace(_experts(config, dtype), correction_bias=True)
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype), attention, experts)
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))


def _residual_flops(config: Config, names: tuple[str, ...]) -> float:
    """FLOP per element of a residual sum: one, plus one for each operand that is scaled."""
    scaled = [config.number(name, 1.0) != 1.0 for name in names]
    return 1.0 + float(any(scaled[::2])) + float(any(scaled[1::2]))


def _attention(config: Config, dtype: Dtype) -> Attention:
    config.expect("sliding_window", None)
    attention = parts.attention(config, dtype, Projections())
    return replace(attention, rotary_dim=config.count("rotary_dim", attention.rotary_dim, maximum=attention.head_dim))


def _experts(config: Config, dtype: Dtype) -> Moe:
    config.expect("shared_intermediate_size", 0)
    config.ignore("shared_moe_mode")
    return parts.moe(config, dtype, config.count("intermediate_size"))


def _text_01(config: Config, dtype: Dtype, types: Sequence[str], residual_flops: float) -> Model:
    """MiniMax-Text-01: each residual sum adds to the normalised stream."""
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
    plain = parts.layers_by_kind(kinds, parts.pre_norms(config, dtype), mixers, {"moe": _experts(config, dtype)})
    layers = tuple(replace(layer, residual=Residual.NORMED, residual_flops=residual_flops) for layer in plain)
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))
