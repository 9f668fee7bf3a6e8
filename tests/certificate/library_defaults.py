"""Default configs of the library's causal language models, and those of them that are left out, with a reason each."""

from __future__ import annotations

import json
from typing import Any

from .errors import LibraryMissingError

#: Reason -> model types of the library's mapping that are no decoders of text.
_LEFT_OUT_BY_REASON: dict[str, str] = {
    "an encoder, with a causal mask only where asked": "bert bert-generation big_bird camembert data2vec-text electra "
    "ernie megatron-bert rembert roberta roberta-prelayernorm roc_bert roformer xlm xlm-roberta xlm-roberta-xl xmod "
    "xlnet reformer",
    "decoder half of an encoder-decoder": "bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus "
    "plbart prophetnet trocr whisper",
    "generates sound": "musicgen musicgen_melody moshi moss_transcribe_diarize",
}
#: Fields that a default config leaves empty, or that give it every kind of layer -> values as in a published model.
_FILLED: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
    "laguna": {
        "layer_types": ["full_attention", *["sliding_attention"] * 3] * 10,
        "num_attention_heads_per_layer": [48, 64, 64, 64] * 10,
    },
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 57,
    },
    "hunyuan_v1_dense": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 64, "moe_topk": 8},
}
LEFT_OUT: dict[str, str] = {name: reason for reason, names in _LEFT_OUT_BY_REASON.items() for name in names.split()}


def default_config(model_type: str) -> dict[str, Any]:
    """Every field of the library's default config, as `config.json` would state it, and what it cannot do without."""
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise LibraryMissingError(f"{model_type}: transformers is not installed") from error
    config = AutoConfig.for_model(model_type, **_FILLED.get(model_type, {}))
    return dict(json.loads(config.to_json_string(use_diff=False)))
