"""GLM-4 (three layouts), and ChatGLM2 and 3."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import Norms
from llmviewer.models import parts
from llmviewer.models.config import Config, head_count, hidden_size
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import rms_norm


def parse_glm(config: Config, dtype: Dtype) -> Model:
    """GlmForCausalLM (glm-4-9b-hf): biases on q, k and v; half of each head rotated."""
    config.defaults(head_dim=128, attention_bias=True)
    return _dense(config, dtype, _attention(config, dtype), parts.pre_norms(config, dtype))


def parse_glm4(config: Config, dtype: Dtype) -> Model:
    """Glm4ForCausalLM (GLM-4-0414): GLM with norms also after attention and after the MLP."""
    config.defaults(head_dim=128, attention_bias=True)
    return _dense(config, dtype, _attention(config, dtype), parts.sandwich_norms(config, dtype))


def parse_glm_ocr(config: Config, dtype: Dtype) -> Model:
    """GlmOcrForConditionalGeneration: the layers of GLM-4-0414 without biases, heads of hidden_size / heads."""
    config.expect("attention_bias", False)
    config.defaults(head_dim=hidden_size(config) // head_count(config))
    config.override(attention_bias=False)
    return parse_glm4(config, dtype)


def parse_chatglm(config: Config, dtype: Dtype) -> Model:
    """ChatGLMModel (ChatGLM2, ChatGLM3, glm-4-9b with its own code): GLM with one matrix for q, k and v.

    ChatGLM-6B has another form of layers, which its `inner_hidden_size` shows.
    """
    if config.has("inner_hidden_size"):
        from llmviewer.models.first_forms import CHATGLM_6B

        return CHATGLM_6B(config, dtype)
    for name in ("rmsnorm", "original_rope", "post_layer_norm"):
        config.expect(name, True)
    for name in ("add_bias_linear", "apply_residual_connection_post_layernorm", "interleaved_qkv"):
        config.expect(name, False)
    config.expect("pre_seq_len", None)
    config.ignore("apply_query_key_layer_scaling", "bias_dropout_fusion", "fp32_residual_connection")
    has_groups = config.flag("multi_query_attention", default=False)
    config.defaults(
        vocab_size=config.count("padded_vocab_size"),
        num_hidden_layers=config.count("num_layers"),
        intermediate_size=config.count("ffn_hidden_size"),
        head_dim=config.count("kv_channels"),
        attention_bias=config.flag("add_qkv_bias", default=False),
        num_key_value_heads=config.count("multi_query_group_num") if has_groups else None,
        hidden_act="silu",
    )
    attention = _attention(config, dtype)
    fused = replace(attention.projections, fused=True)
    return _dense(config, dtype, replace(attention, projections=fused), parts.pre_norms(config, dtype))


def _attention(config: Config, dtype: Dtype) -> Attention:
    config.defaults(partial_rotary_factor=0.5)
    bias = config.flag("attention_bias", default=False)
    return parts.attention(config, dtype, Projections(qkv_bias=bias))


def _dense(config: Config, dtype: Dtype, attention: Attention, norms: Norms) -> Model:
    """A model of identical layers, with gate and up fused in one matrix."""
    mlp = replace(parts.mlp(config, dtype, config.count("intermediate_size")), fused=True)
    layers = parts.uniform_layers(config, norms, attention, mlp)
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))
