"""MiniMax-Text-01 (lightning and softmax attention) and MiniMax-M2 (only softmax attention)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import QkNorm
from llmviewer.layers.decoder import Mixer, Residual
from llmviewer.layers.feed_forward import Moe
from llmviewer.layers.linear_attention import LightningAttention
from llmviewer.models import parts
from llmviewer.models.config import Config, binary_layer_list
from llmviewer.models.decoder import Decoder
from llmviewer.models.layer_patterns import FullEvery
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation

#: Meaning of 0 and 1 in `attn_type_list`.
ATTENTION_TYPES = ("linear", "full")


def _corrected_experts(config: Config, dtype: Dtype) -> Moe:
    return replace(parts.wide_moe(config, dtype), correction_bias=True)


#: Softmax attention with experts in every layer.
_SOFTMAX = Decoder(
    constants={"sliding_window": None, "shared_intermediate_size": 0},
    ignored="shared_moe_mode",
    qkv_bias=False,
    out_bias=False,
    rotated="rotary_dim",
    experts=parts.wide_moe,
)


def _mixers(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    attention = _SOFTMAX.attention(config, dtype)
    lightning = LightningAttention(
        hidden=attention.hidden,
        heads=attention.heads,
        head_dim=attention.head_dim,
        activation=activation(config.text("hidden_act", "silu")),
        dtype=dtype,
    )
    return {"linear": lightning, "full": attention}


def _normed_sums(model: Model, config: Config, factors: Sequence[str]) -> Model:
    """The model whose residual sums add to the normalised stream; each operand that is scaled is one more FLOP."""
    scaled = [config.number(name, 1.0) != 1.0 for name in factors]
    flops = 1.0 + float(any(scaled[::2])) + float(any(scaled[1::2]))
    layers = (replace(layer, residual=Residual.NORMED, residual_flops=flops) for layer in model.layers)
    return replace(model, layers=tuple(layers))


def _published_sums(model: Model, config: Config) -> Model:
    kinds = ("full_attention", "linear_attention", "mlp")
    names = [f"layernorm_{kind}_{factor}" for kind in kinds for factor in ("alpha", "beta")]
    return _normed_sums(model, config, names)


def _library_sums(model: Model, config: Config) -> Model:
    kinds = ("full_attn", "linear_attn", "mlp")
    return _normed_sums(model, config, [f"{kind}_{side}_factor" for kind in kinds for side in ("alpha", "beta")])


#: MiniMaxText01ForCausalLM, with the fields of the published config.
MINIMAX_TEXT_01 = replace(
    _SOFTMAX,
    constants={**_SOFTMAX.constants, "postnorm": True},
    mixers=_mixers,
    types=lambda config: binary_layer_list(config, "attn_type_list", ATTENTION_TYPES),
    finish=_published_sums,
)


#: MiniMaxForCausalLM: MiniMax-Text-01 with the field names of transformers.
MINIMAX = replace(
    _SOFTMAX,
    ignored="shared_moe_mode block_size",  # part of the chunked scan
    mixers=_mixers,
    types=FullEvery("", 2, at=0, other="linear"),
    finish=_library_sums,
)


def _no_lightning(config: Config) -> None:
    if config.has("attn_type_list") and "linear" in binary_layer_list(config, "attn_type_list", ATTENTION_TYPES):
        raise UserError(f"{config.where}: attn_type_list has lightning attention, expected only softmax attention")


#: MiniMaxM2ForCausalLM: QK-norm over all heads together, experts chosen with a stored bias.
MINIMAX_M2 = replace(
    _SOFTMAX,
    constants={**_SOFTMAX.constants, "qk_norm_type": "per_layer", "use_qk_norm": True, "use_routing_bias": True},
    ignored="shared_moe_mode mlp_intermediate_size",  # no layer is dense
    prepare=_no_lightning,
    qk_norm=QkNorm.WHOLE,
    experts=_corrected_experts,
)
