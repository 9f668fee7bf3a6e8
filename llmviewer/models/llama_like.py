"""Dense architectures with RMSNorm that differ from Llama in stated facts, Llama 4, and Llama 3.2 Vision."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.decoder import DecoderLayer, FeedForward
from llmviewer.layers.mla import Mla
from llmviewer.models import parts
from llmviewer.models.config import Config, head_count, hidden_size, layer_count, rope_layers
from llmviewer.models.deepseek import latent_attention
from llmviewer.models.dense import Dense, attention_of, sizes
from llmviewer.models.layer_patterns import one_window
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import bare_rms_norm, rms_norm


def minicpm_attention(config: Config, dtype: Dtype) -> Mla:
    """Latent attention; values are hidden_size / heads wide unless stated."""
    config.defaults(v_head_dim=hidden_size(config) // head_count(config))
    return latent_attention(config, dtype)


#: Ernie4_5ForCausalLM: one flag for the biases of all matrices.
ERNIE4_5 = Dense(
    defaults={**sizes(1024, 3072, 18, 16, 103424, 131072), "num_key_value_heads": 2, "head_dim": 128},
    ignored="compression_ratio ignored_index rope_is_neox_style use_3d_rope weight_share_add_bias",
    constants={"use_rmsnorm": True},
    qkv_bias="use_bias",
    out_bias="use_bias",
    mlp_bias="use_bias",
    tied=True,
)
#: SeedOssForCausalLM: biases on q, k and v; the heads together are wider than the residual stream.
SEED_OSS = Dense(
    defaults={
        **sizes(4096, 27648, 64, 80, 155136, 524288),
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_bias": True,
    },
    ignored="residual_dropout",
    out_bias="attention_out_bias",
)
#: HunYuanDenseV1ForCausalLM: QK-norm after rope.
HUNYUAN = Dense(
    defaults=sizes(4096, 11008, 32, 32, 290943, 2048),
    constants={
        "use_qk_norm": True,
        "use_cla": False,
        "add_classification_head": False,
        "num_experts": 1,
        "mlp_bias": False,
    },
    ignored="eod_token_id cla_share_factor class_num dense_list enable_lm_head_fp32 im_end_id im_newline_id "
    "im_start_id mask_init_id norm_type org_vocab_size pad_id pool_type text_end_id text_start_id use_rotary_pos_emb",
    names={"attention_head_dim": "head_dim"},
    mlp_bias=False,
    qk_norm=QkNorm.PER_HEAD,
)
#: Ministral3ForCausalLM: Mistral without a window by default.
MINISTRAL3 = Dense(
    defaults={**sizes(4096, 14336, 34, 32, 131072, 262144), "num_key_value_heads": 8, "head_dim": 128},
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
    types=one_window,
)
#: ApertusForCausalLM: QK-norm and an MLP without a gate, whose activation has two learned numbers.
APERTUS = Dense(
    defaults={**sizes(4096, 14336, 32, 32, 131072, 65536), "hidden_act": "xielu"},
    constants={"hidden_act": "xielu", "qk_norm": True, "post_norm": False, "mlp_bias": False},
    qk_norm=QkNorm.PER_HEAD,
    gated=False,
    mlp_bias=False,
    parameters=2,
)
#: ArceeForCausalLM: an MLP without a gate.
ARCEE = Dense(defaults={**sizes(2560, 18432, 32, 32, 32000, 4096), "hidden_act": "relu2"}, gated=False)
#: InternLM3ForCausalLM (remote code): biases of the attention's input matrices apart from those of all others.
INTERNLM3 = Dense(
    defaults={**sizes(4096, 10240, 48, 32, 128512, 32768), "num_key_value_heads": 2, "head_dim": 128},
    names={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
    out_bias="mlp_bias",
)
#: IQuestCoderForCausalLM (remote code): Llama.
IQUESTCODER = Dense(defaults={**sizes(5120, 27648, 80, 40, 76800, 131072), "num_key_value_heads": 8, "head_dim": 128})
#: HeliumForCausalLM: Llama without a bias on the attention's output.
HELIUM = Dense(
    defaults={**sizes(2560, 7040, 24, 20, 48000, 4096), "num_key_value_heads": 20, "head_dim": 128}, out_bias=False
)
#: NanoChatForCausalLM: norms without weights, also on the embeddings; an MLP without a gate.
NANOCHAT = Dense(
    defaults={**sizes(768, 8192, 12, 6, 50304, 2048), "hidden_act": "relu2", "final_logit_softcapping": 15.0},
    norm=bare_rms_norm,
    qk_norm=QkNorm.WEIGHTLESS,
    gated=False,
    mlp_bias=False,
    embedding_norm=True,
    caps=True,
)
#: BitNetForCausalLM: a further norm before the last matrix of attention and MLP.
BITNET = Dense(
    defaults={**sizes(2560, 6912, 30, 20, 128256, 2048), "num_key_value_heads": 5, "hidden_act": "relu2"},
    mlp_bias=False,
    sub_norms=True,
)
#: Emu3ForCausalLM, its language model: Llama.
EMU3 = Dense(defaults={**sizes(4096, 14336, 32, 32, 184622, 9216), "num_key_value_heads": 8})
#: HyperCLOVAXForCausalLM: Granite with norms after each part.
HYPERCLOVAX = Dense(
    defaults={**sizes(4096, 11008, 32, 32, 32000, 2048), "use_post_norm": True},
    ignored="attention_multiplier",
    around_if="use_post_norm",
    factors=True,
)
#: Phi4MultimodalForCausalLM and its first form (phi4mm, remote code): Phi-3 beside towers for images and sound.
PHI4_MULTIMODAL = Dense(
    defaults={**sizes(3072, 8192, 32, 32, 200064, 131072), "num_key_value_heads": 8},
    constants={"attention_bias": False, "lm_head_bias": False, "full_attn_mod": 1, "mlp_bias": False},
    ignored="interpolate_factor embd_layer audio_processor img_processor speech_lora vision_lora embed_layer",
    types=one_window,
    fused=True,
    fused_mlp=True,
    qkv_bias=False,
    out_bias=False,
    beside="vision and audio parts or their LoRA matrices",
)
#: MiniCPM3ForCausalLM: DeepSeek's latent attention and factors on embeddings, branches and logits.
MINICPM3 = Dense(
    defaults={
        **sizes(2560, 6400, 62, 40, 73448, 32768),
        "q_lora_rank": 768,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "embedding_multiplier": 12,
        "residual_multiplier": 1.4,
    },
    names={"scale_emb": "embedding_multiplier", "scale_depth": "residual_multiplier"},
    ignored="dim_model_base",
    mixer=minicpm_attention,
    tied=True,
    factors=True,
)
#: YoutuForCausalLM: DeepSeek-V3's latent attention in a dense model.
YOUTU = Dense(
    defaults={
        **sizes(2048, 6144, 32, 16, 128256, 131072),
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
    mixer=latent_attention,
    mlp_bias=False,
    ignored="embedding_initializer_range",
    tied=True,
)


def parse_llama4(config: Config, dtype: Dtype) -> Model:
    """Llama4ForCausalLM: chunked attention with rope, full attention without rope in every fourth layer; experts."""
    types = ["chunked" if rope else "full" for rope in rope_layers(config)]
    config.expect("layer_types", [f"{word}_attention" for word in types])
    kinds = list(zip(types, _feed_forwards(config), strict=True))
    mixers = _attention(config, dtype)

    def layer(kind: tuple[str, str], repeats: int) -> DecoderLayer:
        return DecoderLayer(
            name=parts.block_name(kind, kinds),
            repeats=repeats,
            norms=parts.pre_norms(config, dtype),
            mixer=mixers[kind[0]],
            feed_forward=_feed_forward(config, dtype, kind[1]),
        )

    norm = rms_norm("final_norm", hidden_size(config), dtype)
    return parts.model(config, dtype, parts.group_layers(kinds, layer), norm)


def _attention(config: Config, dtype: Dtype) -> dict[str, Attention]:
    """Attention by layer type; only layers with rope have QK-norm, which has no weights."""
    # a factor on queries at long contexts, and a setting of the quantizer
    config.ignore("attn_temperature_tuning", "floor_scale", "attn_scale", "for_llm_compressor")
    full = parts.attention(config, dtype, parts.projections(config), head_dim=128)
    norm = QkNorm.WEIGHTLESS if config.flag("use_qk_norm", default=True) else QkNorm.NONE
    chunked = replace(full, qk_norm=norm, chunk=config.count("attention_chunk_size", 8192))
    return {"chunked": chunked, "full": replace(full, rotary_dim=0)}


def _feed_forwards(config: Config) -> list[str]:
    """`moe` in the layers that `moe_layers` lists, or every `interleave_moe_layer_step`-th; else `dense`."""
    depth, step = layer_count(config), config.count("interleave_moe_layer_step", 1)
    listed = config.numbers("moe_layers", range(step - 1, depth, step))
    return ["moe" if layer in listed else "dense" for layer in range(depth)]


def _feed_forward(config: Config, dtype: Dtype, word: str) -> FeedForward:
    """A dense SwiGLU, or experts with fused gate and up and a shared expert of the same size."""
    if word == "dense":
        return parts.mlp(config, dtype, config.count("intermediate_size_mlp"))
    config.ignore("intermediate_size_mlp")  # unused if no layer is dense
    routed = parts.moe(config, dtype, config.count("intermediate_size"))
    return replace(routed, expert=replace(routed.expert, fused=True), shared=routed.expert)


_MLLAMA = Dense(
    defaults={**sizes(4096, 14336, 40, 32, 128256, 131072), "num_key_value_heads": 8},
    constants={"tie_word_embeddings": False},
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
)
#: Layers with cross attention by default, and rows of the embedding for images beyond the vocabulary.
MLLAMA_CROSS_LAYERS, MLLAMA_IMAGE_ROWS = (3, 8, 13, 18, 23, 28, 33, 38), 8


def parse_mllama(config: Config, dtype: Dtype) -> Model:
    """MllamaForCausalLM (Llama 3.2 Vision), a pass over text alone.

    Without an image the layers with cross attention are skipped; their weights are stored.
    """
    built, depth = _MLLAMA(config, dtype), layer_count(config)
    layer, attention = built.layers[0], attention_of(built.layers[0])
    listed = config.numbers("cross_attention_layers", MLLAMA_CROSS_LAYERS)
    own = tuple(number for number in range(depth) if number not in listed)
    if not own:
        raise UserError(f"{config.where}: field 'cross_attention_layers' leaves no layer for text")
    hidden, width = attention.hidden, attention.heads * attention.head_dim
    matrices = 2 * hidden * (width + attention.kv_heads * attention.head_dim)
    matrices += 3 * hidden * config.count("intermediate_size")
    per_layer = matrices + 2 * hidden + 2 * attention.head_dim + 2  # norms, QK-norms, gates
    rows = built.embedding.vocabulary + MLLAMA_IMAGE_ROWS
    skipped = depth - len(own)
    text = replace(
        built,
        layers=(replace(layer, repeats=len(own), numbers=own),),
        embedding=replace(built.embedding, vocabulary=rows),
        notes=(*built.notes, f"{skipped} layers with cross attention are stored and not run, as without images"),
    )
    return parts.with_stored(text, cross_attention=skipped * per_layer)
