"""Dense architectures whose code comes with their checkpoints and has no class in transformers.

Sources: the modelling file beside each checkpoint, named at its entry.
"""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.errors import UserError
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.decoder import Decoder, sizes
from llmviewer.models.layer_patterns import one_window
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import layer_norm


def halve_width(config: Config) -> None:
    """Qwen states the width of gate and up together, and biases by `no_bias`."""
    width = config.count("intermediate_size", 22016)
    if width % 2:
        raise UserError(f"{config.where}: field 'intermediate_size' is {width}, which is not even")
    config.fields = {**config.fields, "intermediate_size": width // 2, "bias": not config.flag("no_bias", default=True)}


#: https://huggingface.co/internlm/internlm-7b, modeling_internlm.py: biases on q, k, v and o.
INTERNLM = Decoder(
    defaults={**sizes(4096, 11008, 32, 32, 103168, 2048), "bias": True}, ignored="rotary", bias="bias", mlp_bias=False
)
#: https://huggingface.co/openbmb/MiniCPM-2B-sft-bf16, modeling_minicpm.py: factors as in MiniCPM3.
MINICPM = Decoder(
    defaults=sizes(4096, 11008, 32, 32, 32000, 2048),
    names={"scale_emb": "embedding_multiplier", "scale_depth": "residual_multiplier"},
    ignored="dim_model_base mup_denominator",
    mlp_bias=False,
    tied=True,
    factors=True,
)
#: https://huggingface.co/OrionStarAI/Orion-14B-Base, modeling_orion.py: LayerNorm with biases.
ORION = Decoder(defaults=sizes(5120, 15360, 40, 40, 84608, 4096), norm=layer_norm, mlp_bias=False)
#: https://huggingface.co/Qwen/Qwen-7B, modeling_qwen.py: one matrix with biases for q, k and v.
QWEN = Decoder(
    defaults={**sizes(4096, None, 32, 32, 151936, 8192), "head_dim": 128},
    names={"kv_channels": "head_dim"},
    constants={"rotary_pct": 1.0},
    ignored="attn_dropout_prob emb_dropout_prob bf16 fp16 fp32 onnx_safe seq_length use_dynamic_ntk use_logn_attn "
    "use_cache_quantization use_cache_kernel softmax_in_fp32 rope_type",
    prepare=halve_width,
    fused=True,
    bias="bias",
    qkv_bias=True,
)
#: https://huggingface.co/microsoft/phi-2, modeling_phi.py of 2023: Phi with one matrix for q, k and v.
PHI_MSFT = Decoder(
    defaults={**sizes(1024, None, 20, 16, 50304, 2048), "hidden_act": "gelu_new"},
    names={"n_head_kv": "num_key_value_heads"},
    ignored="flash_attn flash_rotary fused_dense img_processor",
    rotated="rotary_dim",
    norm=layer_norm,
    gated=False,
    fused=True,
    bias=True,
    parallel=True,
    head_bias=True,
)
#: https://huggingface.co/XiaomiMiMo/MiMo-7B-RL, modeling_mimo.py: Qwen2, with blocks for multi-token prediction.
MIMO = Decoder(
    defaults={**sizes(4096, 11008, 36, 32, 151680, 32768), "num_key_value_heads": 8},
    constants={"attention_bias": True, "use_mrope": False, "use_sliding_window": False},
    ignored="sliding_window max_window_layers",
    bias=False,
    qkv_bias=True,
)
#: https://huggingface.co/LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct, modeling_exaone.py: Llama by other names.
EXAONE = Decoder(defaults=sizes(2048, 8192, 32, 32, 102400, 2048), ignored="embed_dropout", bias=False, tied=True)
#: https://huggingface.co/upstage/solar-pro-preview-instruct, modeling_solar.py: Llama with a window; a few layers mix
#: the stream with that of an earlier layer, which needs no weights.
SOLAR = Decoder(
    defaults={**sizes(4096, 11008, 32, 32, 32000, 2048), "sliding_window": 2047},
    ignored="bskcn_1 bskcn_2 bskcn_3 bskcn_4 bskcn_tv",
    types=one_window,
)
#: https://huggingface.co/Skywork/Skywork-13B-base, modeling_skywork.py: Llama.
SKYWORK = Decoder(defaults=sizes(4096, 11008, 32, 32, 32000, 2048), bias=False)
#: https://huggingface.co/Tele-AI/telechat-7B, modeling_telechat.py: biases on the last matrix of attention and MLP.
TELECHAT = Decoder(
    defaults=sizes(4096, 12288, 30, 32, 160256, 8192),
    names={"ffn_hidden_size": "intermediate_size"},
    constants={"embed_layernorm": False, "apply_residual_connection_post_layernorm": False},
    ignored="logn flash_attn base_seqlen training_seqlen seq_length unk_token_id bias_dropout_fusion offset_alibi "
    "masked_softmax_fusion relative_encoding skip_bias_add skip_bias_add_qkv use_RotaryEmbedding",
    bias=False,
    out_bias=True,
    mlp_out_bias=True,
    tied=True,
)
#: https://huggingface.co/GSAI-ML/LLaDA-8B-Instruct, modeling_llada.py: Llama by other names, whose attention sees the
#: whole sequence; it denoises blocks of tokens (--speculative diffusion).
LLADA = Decoder(
    defaults=sizes(4096, 12288, 32, 32, 126464, 4096),
    names={
        "n_heads": "num_attention_heads",
        "n_kv_heads": "num_key_value_heads",
        "mlp_hidden_size": "intermediate_size",
        "max_sequence_length": "max_position_embeddings",
        "activation_type": "hidden_act",
        "weight_tying": "tie_word_embeddings",
    },
    constants={
        "alibi": False,
        "attention_layer_norm": False,
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "include_bias": False,
        "include_qkv_bias": False,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "multi_query_attention": None,
        "rope": True,
    },
    ignored="alibi_bias_max attention_layer_norm_with_affine embedding_dropout embedding_size flash_attention "
    "init_cutoff_factor init_device init_fn init_std mask_token_id mlp_ratio precision residual_dropout "
    "rope_full_precision scale_logits",
    bias=False,
)
#: https://huggingface.co/Dream-org/Dream-v0-Instruct-7B, modeling_dream.py: Qwen2 whose attention sees the whole
#: sequence; it denoises blocks of tokens (--speculative diffusion).
DREAM = Decoder(
    defaults=sizes(4096, 22016, 32, 32, 151936, 32768),
    constants={"use_mrope": False, "use_sliding_window": False},
    ignored="sliding_window max_window_layers mask_token_id",
    bias=False,
    qkv_bias=True,
)


def _molmo_fields(config: Config) -> None:
    """Molmo states the width of gate and up together, and its table without the rows of its own tokens."""
    width = config.count("intermediate_size")
    if width % 2:
        raise UserError(f"{config.where}: field 'intermediate_size' is {width}, which is not even")
    config.override(intermediate_size=width // 2, vocab_size=config.count("embedding_size", config.count("vocab_size")))
    config.defaults(tie_word_embeddings=config.flag("weight_tying", default=False))


def _molmo_tables(model: Model, config: Config) -> Model:
    """The model with its second table, for tokens of images."""
    rows = config.count("additional_vocab_size", 128)
    note = "only the language model is counted; the size of the vision tower is not stated: its weights are missing"
    stored = parts.with_stored(model, new_embedding=rows * model.hidden)
    return replace(stored, notes=(*stored.notes, note))


#: https://huggingface.co/allenai/Molmo-7B-D-0924, modeling_molmo.py: Qwen2 by other names.
MOLMO = Decoder(
    prepare=_molmo_fields,
    constants={"layer_norm_type": "rms", "norm_after": False, "attention_layer_norm": False, "clip_qkv": None},
    ignored="use_position_ids",
    bias=False,
    qkv_bias="qkv_bias",
    fused=True,
    fused_mlp=True,
    finish=_molmo_tables,
)
