"""Llama and dense architectures that differ from it in a few fields.

Llama 1 to 3.3 and checkpoints with its layout (CodeLlama, Yi, TinyLlama ...), InternLM2, Baichuan, Mistral, Phi-3,
Granite 3, OLMo-2 and SmolLM3.
"""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections, QkNorm
from llmviewer.layers.decoder import DecoderLayer, Norms
from llmviewer.layers.mlp import Mlp
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.fields import layer_count, layer_types, rope_layers, window
from llmviewer.models.model import Model
from llmviewer.ops.norm import rms_norm

#: Baichuan 7B has rope, its other sizes ALiBi.  The config does not say which; vLLM also tells them apart by width.
BAICHUAN_ROPE_WIDTH = 4096


def parse_llama(config: Config, dtype: Dtype) -> Model:
    """LlamaForCausalLM: RMSNorm, grouped-query attention with rope, SwiGLU."""
    return _model(config, dtype, parts.attention(config, dtype, parts.projections(config)))


def parse_internlm2(config: Config, dtype: Dtype) -> Model:
    """InternLM2ForCausalLM (remote code): Llama with queries, keys and values in one matrix, `wqkv`."""
    bias = config.flag("bias", default=True)
    projections = Projections(fused=True, qkv_bias=bias, out_bias=bias)
    return _model(config, dtype, parts.attention(config, dtype, projections))


def parse_baichuan(config: Config, dtype: Dtype) -> Model:
    """BaichuanForCausalLM 1 and 2 (remote code): Llama with one matrix `W_pack`; the 13B has ALiBi and no rope."""
    config.ignore("z_loss_weight")  # training only
    attention = parts.attention(config, dtype, Projections(fused=True))
    if attention.hidden != BAICHUAN_ROPE_WIDTH:
        attention = replace(attention, rotary_dim=0, alibi=True)
    return _model(config, dtype, attention)


def parse_mistral(config: Config, dtype: Dtype) -> Model:
    """MistralForCausalLM (7B, Nemo, Small): Llama with one window for all layers, or none."""
    config.defaults(sliding_window=4096)
    attention = replace(parts.attention(config, dtype, parts.projections(config)), window=window(config))
    return _model(config, dtype, attention)


def parse_phi3(config: Config, dtype: Dtype) -> Model:
    """Phi3ForCausalLM (Phi-3, 3.5, 4): Llama with fused q, k, v and fused gate and up; one window for all layers."""
    for absent in ("attention_bias", "lm_head_bias"):
        config.expect(absent, False)
    config.expect("full_attn_mod", 1)
    config.ignore("interpolate_factor")  # part of rope scaling
    attention = replace(parts.attention(config, dtype, Projections(fused=True)), window=window(config))
    return _model(config, dtype, attention, mlp=replace(parts.gated_mlp(config, dtype), fused=True))


def parse_granite(config: Config, dtype: Dtype) -> Model:
    """GraniteForCausalLM (Granite 3): Llama with factors on embeddings, branches and logits."""
    config.ignore("attention_multiplier")  # replaces 1 / sqrt(head_dim): no extra work
    plain = _model(config, dtype, parts.attention(config, dtype, parts.projections(config)))
    residual_flops = 1.0 + factor_flops(config, "residual_multiplier")
    return replace(
        plain,
        layers=tuple(replace(layer, residual_flops=residual_flops) for layer in plain.layers),
        embedding=replace(plain.embedding, scaled=bool(factor_flops(config, "embedding_multiplier"))),
        head=replace(plain.head, logit_flops=factor_flops(config, "logits_scaling")),
    )


def factor_flops(config: Config, name: str) -> float:
    """FLOP per element of a factor: 1, or 0 if the factor is 1."""
    return float(config.number(name, 1.0) != 1.0)


def parse_olmo2(config: Config, dtype: Dtype) -> Model:
    """Olmo2ForCausalLM: norms after each branch and none before; QK-norm over all heads together."""
    attention = replace(parts.attention(config, dtype, parts.projections(config)), qk_norm=QkNorm.WHOLE)
    hidden = attention.hidden
    norms = Norms(attn_post=rms_norm("attn_norm", hidden, dtype), mlp_post=rms_norm("mlp_norm", hidden, dtype))
    return _model(config, dtype, attention, norms=norms)


def parse_smollm3(config: Config, dtype: Dtype) -> Model:
    """SmolLM3ForCausalLM: Llama without rope in every fourth layer."""
    config.expect("use_sliding_window", False)
    config.ignore("sliding_window", "max_window_layers")
    layer_types(config, ("full",), ["full"] * layer_count(config))
    attention = parts.attention(config, dtype, parts.projections(config))
    mlp = parts.gated_mlp(config, dtype)
    kinds = [("rope" if rope else "nope",) for rope in rope_layers(config)]

    def layer(kind: tuple[str], repeats: int) -> DecoderLayer:
        return DecoderLayer(
            name=parts.block_name(kind, kinds),
            repeats=repeats,
            norms=parts.pre_norms(config, dtype),
            mixer=attention if kind == ("rope",) else replace(attention, rotary_dim=0),
            feed_forward=mlp,
        )

    norm = rms_norm("final_norm", attention.hidden, dtype)
    return parts.model(config, dtype, parts.group_layers(kinds, layer), norm, tied=True)


def _model(
    config: Config, dtype: Dtype, attention: Attention, *, mlp: Mlp | None = None, norms: Norms | None = None
) -> Model:
    """All layers alike, with SwiGLU and RMSNorms before each branch unless stated otherwise."""
    mlp = mlp or parts.gated_mlp(config, dtype)
    layers = parts.uniform_layers(config, norms or parts.pre_norms(config, dtype), attention, mlp)
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))
