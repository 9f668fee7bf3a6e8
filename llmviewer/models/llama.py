"""Llama 1, 2, 3, 3.1 to 3.3 and checkpoints that use its layout (CodeLlama, Yi, TinyLlama ...); InternLM2, Baichuan."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.ops.norm import rms_norm

#: Baichuan's 7B rotates queries and keys; its other sizes use ALiBi.  The config does not say: vLLM asks the width too.
ROTARY_BAICHUAN_WIDTH = 4096


def parse(config: Config, dtype: Dtype) -> Model:
    """LlamaForCausalLM: RMSNorm, grouped-query attention with rope, SwiGLU."""
    return _model(config, dtype, parts.attention(config, dtype, parts.projections(config)))


def parse_internlm2(config: Config, dtype: Dtype) -> Model:
    """InternLM2ForCausalLM (remote code): Llama with queries, keys and values in one matrix, `wqkv`."""
    bias = config.flag("bias", default=True)
    projections = Projections(fused=True, qkv_bias=bias, out_bias=bias)
    return _model(config, dtype, parts.attention(config, dtype, projections))


def parse_baichuan(config: Config, dtype: Dtype) -> Model:
    """BaichuanForCausalLM (remote code), 1 and 2: Llama with one matrix `W_pack`; the 13B has ALiBi and no rope."""
    config.ignore("z_loss_weight")  # of training
    attention = parts.attention(config, dtype, Projections(fused=True))
    if attention.hidden != ROTARY_BAICHUAN_WIDTH:
        attention = replace(attention, rotary_dim=0, alibi=True)
    return _model(config, dtype, attention)


def _model(config: Config, dtype: Dtype, attention: Attention) -> Model:
    mlp = parts.gated_mlp(config, dtype)
    layers = parts.alike(config, parts.pre_norms(config, dtype), attention, mlp)
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))
