"""DBRX."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Projections
from llmviewer.layers.mlp import Mlp
from llmviewer.layers.moe import Moe
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import hidden_size, shared_heads
from llmviewer.ops.elementwise import activation
from llmviewer.ops.norm import layer_norm


def parse(config: Config, dtype: Dtype) -> Model:
    """DbrxForCausalLM: LayerNorm without bias, one clamped matrix for q, k, v, experts in every layer."""
    attn = config.part("attn_config")
    projections = Projections(fused=True, clip=attn.has("clip_qkv"))
    attention = parts.attention(config, dtype, projections)
    attention = replace(attention, kv_heads=shared_heads(attn, "kv_n_heads", 1, serve=attention.heads))
    norm = partial(layer_norm, bias=False)
    layers = parts.alike(config, parts.pre_norms(config, dtype, norm), attention, _experts(config, dtype))
    return parts.model(config, dtype, layers, norm("final_norm", attention.hidden, dtype))


def _experts(config: Config, dtype: Dtype) -> Moe:
    ffn, hidden = config.part("ffn_config"), hidden_size(config)
    ffn.expect("ffn_act_fn", {"name": "silu"})
    # of training, and how the chosen weights are normalised
    ffn.ignore("moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights", "uniform_expert_assignment")
    width, experts = ffn.count("ffn_hidden_size"), ffn.count("moe_num_experts")
    return Moe(
        expert=Mlp(hidden=hidden, intermediate=width, activation=activation("silu"), dtype=dtype),
        experts=experts,
        chosen=ffn.count("moe_top_k", most=experts),
        dtype=dtype,
        hidden=hidden,
    )
