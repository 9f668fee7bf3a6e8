"""Gemma 1, 2 and 3."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.decoder import DecoderLayer
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.fields import hidden_size, sliding_or_full, window
from llmviewer.models.model import Model
from llmviewer.ops.norm import rms_norm

#: Class defaults of all three (`hidden_act: gelu` of Gemma 1 also means the tanh form).
DEFAULTS = {"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}

#: Class defaults of Gemma 3; the published config of the 4B states little more than width and depth.
GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}


def parse_gemma(config: Config, dtype: Dtype) -> Model:
    """GemmaForCausalLM: Llama with GeGLU, wide heads, scaled embeddings, tied head."""
    attention = _attention(config, dtype)
    mlp = parts.gated_mlp(config, dtype)
    return gemma_model(config, dtype, parts.uniform_layers(config, parts.pre_norms(config, dtype), attention, mlp))


def parse_gemma2(config: Config, dtype: Dtype) -> Model:
    """Gemma2ForCausalLM: a window in every other layer; norms around each branch; soft caps on scores and logits."""
    config.defaults(sliding_window=4096, attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    attention = replace(_attention(config, dtype), soft_cap=config.has("attn_logit_softcapping"))
    return gemma_model(config, dtype, _alternating(config, dtype, attention, 2))


def parse_gemma3(config: Config, dtype: Dtype) -> Model:
    """Gemma3ForCausalLM: five sliding layers, then a full one; norms around each branch; QK-norm per head."""
    config.defaults(**GEMMA3_DEFAULTS)
    attention = replace(_attention(config, dtype), soft_cap=config.has("attn_logit_softcapping"))
    return gemma_model(config, dtype, _alternating(config, dtype, replace(attention, qk_norm=QkNorm.PER_HEAD), 6))


def _attention(config: Config, dtype: Dtype) -> Attention:
    config.defaults(**DEFAULTS)
    config.expect("use_bidirectional_attention", False)
    return parts.attention(config, dtype, parts.projections(config))


def _alternating(config: Config, dtype: Dtype, attention: Attention, period: int) -> tuple[DecoderLayer, ...]:
    """Layers with a sliding window, and full attention in every `period`-th."""
    variants = {"sliding": replace(attention, window=window(config)), "full": attention}
    norms, mlp = parts.sandwich_norms(config, dtype), parts.gated_mlp(config, dtype)

    def layer(kind: str, repeats: int) -> DecoderLayer:
        return DecoderLayer(name=kind, repeats=repeats, norms=norms, mixer=variants[kind], feed_forward=mlp)

    return parts.group_layers(sliding_or_full(config, period), layer)


def gemma_model(config: Config, dtype: Dtype, layers: tuple[DecoderLayer, ...]) -> Model:
    """The model around `layers`: scaled embeddings, and a soft cap on the logits if the config has one."""
    plain = parts.model(config, dtype, layers, rms_norm("final_norm", hidden_size(config), dtype))
    capped = config.has("final_logit_softcapping")
    return parts.with_logit_cap(replace(plain, embedding=replace(plain.embedding, scaled=True)), capped=capped)
