"""Phi-1.5 and 2; Phi-3, 3.5 and 4; Phi-3.5-MoE."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Projections, QkNorm
from llmviewer.layers.decoder import Norms, Residual
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import window
from llmviewer.ops.norm import NormKind, layer_norm, rms_norm


def parse_phi(config: Config, dtype: Dtype) -> Model:
    """PhiForCausalLM: attention and MLP side by side after one LayerNorm; half-rotary; biases everywhere."""
    config.defaults(partial_rotary_factor=0.5)
    attention = parts.attention(config, dtype, Projections(qkv_bias=True, out_bias=True))
    if config.flag("qk_layernorm", default=False):
        attention = replace(attention, qk_norm=QkNorm.PER_HEAD, norm_kind=NormKind.LAYER)
    norms = Norms(attn=layer_norm("attn_norm", attention.hidden, dtype))
    mlp = parts.plain_mlp(config, dtype, act="gelu_new")
    layers = parts.alike(config, norms, attention, mlp, Residual.PARALLEL)
    plain = parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype))
    return parts.biased_head(plain)


def parse_phi3(config: Config, dtype: Dtype) -> Model:
    """Phi3ForCausalLM (Phi-3, 3.5, 4): Llama with fused q, k, v and fused gate and up; one window for all layers."""
    for absent in ("attention_bias", "lm_head_bias"):
        config.expect(absent, False)
    config.expect("full_attn_mod", 1)
    config.ignore("interpolate_factor")  # of rope
    attention = replace(parts.attention(config, dtype, Projections(fused=True)), window=window(config))
    mlp = replace(parts.gated_mlp(config, dtype), fused=True)
    layers = parts.alike(config, parts.pre_norms(config, dtype), attention, mlp)
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))


def parse_phimoe(config: Config, dtype: Dtype) -> Model:
    """PhimoeForCausalLM: Mixtral with LayerNorm and a bias in the head."""
    attention = replace(parts.attention(config, dtype, parts.projections(config)), window=window(config))
    experts = parts.moe(config, dtype, config.count("intermediate_size"))
    layers = parts.alike(config, parts.pre_norms(config, dtype, layer_norm), attention, experts)
    plain = parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype))
    return parts.biased_head(plain) if config.flag("lm_head_bias", default=False) else plain
