"""GLM-4 (three layouts), ChatGLM2 and 3, and ChatGLM-6B."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.models.config import Config, head_count, hidden_size
from llmviewer.models.decoder import AROUND, Decoder
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import layer_norm

#: GlmForCausalLM (glm-4-9b-hf): biases on q, k and v; half of each head rotated; gate and up in one matrix.
GLM = Decoder(
    defaults={"head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5},
    bias=False,
    qkv_bias="attention_bias",
    fused_mlp=True,
)
#: Glm4ForCausalLM (GLM-4-0414): GLM with norms also after attention and after the MLP.
GLM4 = replace(GLM, places=AROUND)


def rounded_head_dim(config: Config) -> None:
    """Without `head_dim` a head has hidden_size / heads elements, rounded down."""
    config.defaults(head_dim=hidden_size(config) // head_count(config))


#: GlmOcrForConditionalGeneration: the layers of GLM-4-0414 without biases, heads of hidden_size / heads.
GLM_OCR = replace(
    GLM4,
    defaults={"partial_rotary_factor": 0.5},
    constants={"attention_bias": False},
    prepare=rounded_head_dim,
    qkv_bias=False,
)


def _chatglm_fields(config: Config) -> None:
    """Key-value heads are all heads unless `multi_query_attention` is set."""
    has_groups = config.flag("multi_query_attention", default=False)
    config.defaults(
        vocab_size=config.count("padded_vocab_size"),
        num_hidden_layers=config.count("num_layers"),
        intermediate_size=config.count("ffn_hidden_size"),
        head_dim=config.count("kv_channels"),
        num_key_value_heads=config.count("multi_query_group_num") if has_groups else None,
        attention_bias=config.flag("add_qkv_bias", default=False),
    )


_CHATGLM = replace(
    GLM,
    defaults={"partial_rotary_factor": 0.5, "hidden_act": "silu"},
    constants={
        **dict.fromkeys(("rmsnorm", "original_rope", "post_layer_norm"), True),
        **dict.fromkeys(("add_bias_linear", "apply_residual_connection_post_layernorm", "interleaved_qkv"), False),
        "pre_seq_len": None,
    },
    ignored="apply_query_key_layer_scaling bias_dropout_fusion fp32_residual_connection",
    prepare=_chatglm_fields,
    fused=True,
)
#: https://huggingface.co/THUDM/chatglm-6b, modeling_chatglm.py: LayerNorm and biases everywhere.
CHATGLM_6B = Decoder(
    defaults={"hidden_act": "gelu"},
    names={"inner_hidden_size": "intermediate_size", "max_sequence_length": "max_position_embeddings"},
    constants={"position_encoding_2d": True, "pre_seq_len": None, "use_bias": True},
    ignored="prefix_projection quantization_bit quantization_embeddings",
    norm=layer_norm,
    tied=True,
    gated=False,
    fused=True,
    bias=True,
)


def parse_chatglm(config: Config, dtype: Dtype) -> Model:
    """ChatGLMModel (ChatGLM2, ChatGLM3, glm-4-9b with its own code): GLM with one matrix for q, k and v.

    ChatGLM-6B has another form of layers, which its `inner_hidden_size` shows.
    """
    return (CHATGLM_6B if config.has("inner_hidden_size") else _CHATGLM)(config, dtype)
