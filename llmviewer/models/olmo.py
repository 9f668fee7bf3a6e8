"""OLMo-2 and OLMoE."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import QkNorm
from llmviewer.layers.decoder import Norms
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.ops.norm import rms_norm


def parse_olmo2(config: Config, dtype: Dtype) -> Model:
    """Olmo2ForCausalLM: norms after each branch and none before; QK-norm over all heads together."""
    attention = replace(parts.attention(config, dtype, parts.projections(config)), qk_norm=QkNorm.WHOLE)
    hidden = attention.hidden
    norms = Norms(attn_post=rms_norm("attn_norm", hidden, dtype), mlp_post=rms_norm("mlp_norm", hidden, dtype))
    mlp = parts.gated_mlp(config, dtype)
    layers = parts.alike(config, norms, attention, mlp)
    return parts.model(config, dtype, layers, rms_norm("final_norm", hidden, dtype))


def parse_olmoe(config: Config, dtype: Dtype) -> Model:
    """OlmoeForCausalLM: experts in every layer; QK-norm over all heads together."""
    projections = replace(parts.projections(config), clip=config.has("clip_qkv"))
    attention = replace(parts.attention(config, dtype, projections), qk_norm=QkNorm.WHOLE)
    experts = parts.moe(config, dtype, config.count("intermediate_size"))
    layers = parts.alike(config, parts.pre_norms(config, dtype), attention, experts)
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))
