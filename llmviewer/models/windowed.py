"""Dense architectures with RMSNorm whose layers differ: windows in some layers, rope in some."""

from __future__ import annotations

from functools import partial

from llmviewer.layers.attention import QkNorm
from llmviewer.models.dense import AFTER, Dense, sizes
from llmviewer.models.fields import sliding_or_full
from llmviewer.models.layer_patterns import (
    all_sliding,
    exaone_types,
    first_of_four,
    layers_with_base,
    local_layers,
)

#: Olmo3ForCausalLM: OLMo 2 with a window in three of four layers.
OLMO3 = Dense(
    defaults={**sizes(4096, 11008, 32, 32, 50304, 2048), "sliding_window": 4096},
    places=AFTER,
    qk_norm=QkNorm.WHOLE,
    types=partial(sliding_or_full, period=4),
)
#: Exaone4ForCausalLM: norms after each part, QK-norm, and no rope in full layers beside layers with a window.
EXAONE4 = Dense(
    defaults={
        **sizes(4096, 16384, 32, 32, 102400, 2048),
        "num_key_value_heads": 32,
        "sliding_window": 4096,
    },
    places=AFTER,
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
    qk_norm=QkNorm.PER_HEAD,
    types=exaone_types,
    rope=local_layers,
)
#: MinistralForCausalLM: Mistral with a window in the layers that the config lists.
MINISTRAL = Dense(
    defaults={**sizes(4096, 14336, 32, 32, 32000, 131072), "num_key_value_heads": 8, "sliding_window": 4096},
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
    types=all_sliding,
)
#: CwmForCausalLM: a window in three of four layers.
CWM = Dense(
    defaults={
        **sizes(6144, 21504, 64, 48, 128256, 131072),
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": 8192,
    },
    qkv_bias=False,
    out_bias=False,
    types=first_of_four,
)
#: VaultGemmaForCausalLM: Gemma 2 without norms after its parts.
VAULTGEMMA = Dense(
    defaults={
        **sizes(2304, 9216, 26, 8, 256000, 8192),
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    types=partial(sliding_or_full, period=2),
    mlp_bias=False,
    scaled=True,
    tied=True,
    caps=True,
)
#: GraniteSWAForCausalLM: Granite with sinks and a window in three of four layers; a rope base of 0 means no rope.
GRANITE_SWA = Dense(
    defaults={**sizes(2560, 8192, 24, 20, 100352, 8192), "num_key_value_heads": 4, "sliding_window": 128},
    ignored="attention_multiplier",
    sinks=True,
    types=first_of_four,
    rope=layers_with_base,
    tied=True,
    factors=True,
)
