"""Llama and dense architectures that differ from it in a few fields.

Llama 1 to 3.3 and checkpoints with its layout (CodeLlama, Yi, TinyLlama ...), InternLM2, Baichuan, Mistral, Phi-3,
Granite 3, OLMo-2 and SmolLM3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import QkNorm
from llmviewer.models.config import Config, layer_count, layer_types, rope_layers
from llmviewer.models.dense import AFTER, Dense, attention_of
from llmviewer.models.layer_patterns import one_window
from llmviewer.models.model import Model

#: Baichuan 7B has rope, its other sizes ALiBi.  The config does not say which; vLLM also tells them apart by width.
BAICHUAN_ROPE_WIDTH = 4096


#: LlamaForCausalLM: RMSNorm, grouped-query attention with rope, SwiGLU. Yi, Aquila and XVERSE have its layout under
#: their own names (https://github.com/vllm-project/vllm, model_executor/models/registry.py).
LLAMA = Dense()
#: InternLM2ForCausalLM (remote code): Llama with queries, keys and values in one matrix, `wqkv`.
INTERNLM2 = Dense(defaults={"bias": True}, fused=True, qkv_bias="bias", out_bias="bias")
#: MistralForCausalLM (7B, Nemo, Small): Llama with one window for all layers, or none.
MISTRAL = Dense(defaults={"sliding_window": 4096}, types=one_window)
#: Phi3ForCausalLM (Phi-3, 3.5, 4): Llama with fused q, k, v and fused gate and up; one window for all layers.
PHI3 = Dense(
    constants={"attention_bias": False, "lm_head_bias": False, "full_attn_mod": 1},
    ignored="interpolate_factor",  # part of rope scaling
    types=one_window,
    fused=True,
    fused_mlp=True,
    qkv_bias=False,
    out_bias=False,
)
#: GraniteForCausalLM (Granite 3): Llama with factors on embeddings, branches and logits; that on scores is no work.
GRANITE = Dense(ignored="attention_multiplier", factors=True)
#: Olmo2ForCausalLM: norms after each branch and none before; QK-norm over all heads together.
OLMO2 = Dense(places=AFTER, qk_norm=QkNorm.WHOLE)


def _full_only(config: Config) -> list[str]:
    return layer_types(config, ("full",), ["full"] * layer_count(config))


def _rope_layers(config: Config, types: Sequence[str]) -> list[bool]:
    return rope_layers(config)


#: SmolLM3ForCausalLM: Llama without rope in every fourth layer.
SMOLLM3 = Dense(
    constants={"use_sliding_window": False},
    ignored="max_window_layers",
    types=_full_only,
    rope=_rope_layers,
    tied=True,
)
_BAICHUAN = Dense(ignored="z_loss_weight", fused=True, qkv_bias=False, out_bias=False)  # training only


def parse_baichuan(config: Config, dtype: Dtype) -> Model:
    """BaichuanForCausalLM 1 and 2 (remote code): Llama with one matrix `W_pack`; the 13B has ALiBi and no rope."""
    built = _BAICHUAN(config, dtype)
    if built.hidden == BAICHUAN_ROPE_WIDTH:
        return built
    mixers = (replace(attention_of(layer), rotary_dim=0, alibi=True) for layer in built.layers)
    return replace(
        built, layers=tuple(replace(layer, mixer=mixer) for layer, mixer in zip(built.layers, mixers, strict=True))
    )
