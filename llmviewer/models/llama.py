"""Llama 1, 2, 3, 3.1, 3.2, and checkpoints that use its layout (CodeLlama, Yi, TinyLlama ...)."""

from __future__ import annotations

from llmviewer.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import DecoderLayer, Norms
from llmviewer.layers.mlp import Mlp
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.parts import model
from llmviewer.ops.elementwise import activation
from llmviewer.ops.norm import rms_norm


def parse(config: Config, dtype: Dtype) -> Model:
    """LlamaForCausalLM: RMSNorm, grouped-query attention with rope, SwiGLU."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    head_dim = config.count("head_dim", hidden // heads)
    attention_bias = config.flag("attention_bias", default=False)
    attention = Attention(
        hidden=hidden,
        heads=heads,
        kv_heads=config.count("num_key_value_heads", heads),
        head_dim=head_dim,
        rotary_dim=head_dim,
        dtype=dtype,
        projections=Projections(qkv_bias=attention_bias, out_bias=attention_bias),
    )
    mlp = Mlp(
        hidden=hidden,
        intermediate=config.count("intermediate_size"),
        activation=activation(config.text("hidden_act", "silu")),
        dtype=dtype,
        bias=config.flag("mlp_bias", default=False),
    )
    layer = DecoderLayer(
        name="layer",
        times=config.count("num_hidden_layers"),
        norms=Norms(attn=rms_norm("attn_norm", hidden, dtype), mlp=rms_norm("mlp_norm", hidden, dtype)),
        mixer=attention,
        feed_forward=mlp,
    )
    return model(config, dtype, (layer,), rms_norm("final_norm", hidden, dtype))
