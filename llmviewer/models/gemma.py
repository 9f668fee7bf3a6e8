"""Gemma 1, 2 and 3."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.decoder import DecoderLayer
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import hidden_size, window
from llmviewer.ops.attention import SOFT_CAP_FLOPS
from llmviewer.ops.norm import rms_norm

#: What the class of all three takes where a config is silent (`hidden_act: gelu` of Gemma 1 means the tanh form too).
DEFAULTS = {"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}

#: The same for Gemma 3's 4B, whose published config states little else than its width and depth.
DEFAULTS_3 = {
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
    return framed(config, dtype, parts.alike(config, parts.pre_norms(config, dtype), attention, mlp))


def parse_gemma2(config: Config, dtype: Dtype) -> Model:
    """Gemma2ForCausalLM: every other layer slides; norms around each branch; soft caps on scores and logits."""
    config.defaults(sliding_window=4096, attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    attention = replace(_attention(config, dtype), soft_cap=config.has("attn_logit_softcapping"))
    return framed(config, dtype, _alternating(config, dtype, attention, 2))


def parse_gemma3(config: Config, dtype: Dtype) -> Model:
    """Gemma3ForCausalLM: five sliding layers, then a full one; norms around each branch; QK-norm per head."""
    config.defaults(**DEFAULTS_3)
    attention = replace(_attention(config, dtype), soft_cap=config.has("attn_logit_softcapping"))
    return framed(config, dtype, _alternating(config, dtype, replace(attention, qk_norm=QkNorm.PER_HEAD), 6))


def _attention(config: Config, dtype: Dtype) -> Attention:
    config.defaults(**DEFAULTS)
    config.expect("use_bidirectional_attention", False)
    return parts.attention(config, dtype, parts.projections(config))


def _alternating(config: Config, dtype: Dtype, attention: Attention, period: int) -> tuple[DecoderLayer, ...]:
    """Sliding layers and, every `period`-th, a full one."""
    variants = {"sliding": replace(attention, window=window(config)), "full": attention}
    norms, mlp = parts.sandwich_norms(config, dtype), parts.gated_mlp(config, dtype)

    def layer(kind: str, times: int) -> DecoderLayer:
        return DecoderLayer(name=kind, repeats=times, norms=norms, mixer=variants[kind], feed_forward=mlp)

    return parts.grouped(parts.alternating(config, period), layer)


def framed(config: Config, dtype: Dtype, layers: tuple[DecoderLayer, ...]) -> Model:
    """Scaled embeddings, a cap on the logits where the config has one."""
    plain = parts.model(config, dtype, layers, rms_norm("final_norm", hidden_size(config), dtype))
    capped = config.has("final_logit_softcapping")
    return replace(
        plain,
        embedding=replace(plain.embedding, scaled=True),
        head=replace(plain.head, logit_flops=SOFT_CAP_FLOPS * capped, logit_special=1.0 * capped),
    )
