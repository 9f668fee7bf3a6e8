"""Llama and dense architectures with RMSNorm that differ from it in stated facts; Llama 4, and Llama 3.2 Vision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.feed_forward import Moe
from llmviewer.models import parts
from llmviewer.models.class_defaults import class_defaults
from llmviewer.models.config import Config, layer_count, rope_layers
from llmviewer.models.decoder import AFTER, Decoder, attention_of, sizes, with_attention
from llmviewer.models.layer_patterns import all_full, one_window
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import bare_rms_norm

#: Baichuan 7B has rope, its other sizes ALiBi.  The config does not say which; vLLM also tells them apart by width.
BAICHUAN_ROPE_WIDTH = 4096

#: LlamaForCausalLM: RMSNorm, grouped-query attention with rope, SwiGLU. Yi, Aquila and XVERSE have its layout under
#: their own names (https://github.com/vllm-project/vllm, model_executor/models/registry.py).
LLAMA = Decoder()
#: InternLM2ForCausalLM (remote code): Llama with queries, keys and values in one matrix, `wqkv`.
INTERNLM2 = Decoder(defaults={"bias": True}, fused=True, qkv_bias="bias", out_bias="bias")
#: MistralForCausalLM (7B, Nemo, Small): Llama with one window for all layers, or none.
MISTRAL = Decoder(defaults={"sliding_window": 4096}, types=one_window)
#: Phi3ForCausalLM (Phi-3, 3.5, 4): Llama with fused q, k, v and fused gate and up; one window for all layers.
PHI3 = Decoder(
    constants={"attention_bias": False, "lm_head_bias": False, "full_attn_mod": 1},
    ignored="interpolate_factor",  # part of rope scaling
    types=one_window,
    fused=True,
    fused_mlp=True,
    qkv_bias=False,
    out_bias=False,
)
#: GraniteForCausalLM (Granite 3): Llama with factors on embeddings, branches and logits; that on scores is no work.
GRANITE = Decoder(ignored="attention_multiplier", factors=True)
#: Olmo2ForCausalLM: norms after each branch and none before; QK-norm over all heads together.
OLMO2 = Decoder(places=AFTER, qk_norm=QkNorm.WHOLE)


def _rope_layers(config: Config, types: Sequence[str]) -> list[bool]:
    return rope_layers(config)


#: SmolLM3ForCausalLM: Llama without rope in every fourth layer.
SMOLLM3 = Decoder(
    constants={"use_sliding_window": False}, ignored="max_window_layers", types=all_full, rope=_rope_layers, tied=True
)


def _baichuan_alibi(model: Model, config: Config) -> Model:
    """The model with ALiBi in place of rope, but for the 7B."""
    if model.hidden == BAICHUAN_ROPE_WIDTH:
        return model
    return with_attention(model, rotary_dim=0, alibi=True)


#: BaichuanForCausalLM 1 and 2 (remote code): Llama with one matrix `W_pack`.
BAICHUAN = Decoder(ignored="z_loss_weight", fused=True, qkv_bias=False, out_bias=False, finish=_baichuan_alibi)
#: Ernie4_5ForCausalLM: one flag for the biases of all matrices.
ERNIE4_5 = Decoder(
    defaults=class_defaults("ernie4_5") | {"head_dim": 128},
    ignored="compression_ratio ignored_index rope_is_neox_style use_3d_rope weight_share_add_bias",
    constants={"use_rmsnorm": True},
    bias="use_bias",
    tied=True,
)
#: SeedOssForCausalLM: biases on q, k and v; the heads together are wider than the residual stream.
SEED_OSS = Decoder(
    defaults=class_defaults("seed_oss") | {"head_dim": 128, "attention_bias": True},
    ignored="residual_dropout",
    out_bias="attention_out_bias",
)
#: HunYuanDenseV1ForCausalLM: QK-norm after rope.
HUNYUAN = Decoder(
    defaults=class_defaults("hunyuan_v1_dense"),
    constants={
        **{"use_qk_norm": True, "use_cla": False, "add_classification_head": False, "num_experts": 1},
        "mlp_bias": False,
    },
    ignored="eod_token_id cla_share_factor class_num dense_list enable_lm_head_fp32 im_end_id im_newline_id "
    "im_start_id mask_init_id norm_type org_vocab_size pad_id pool_type text_end_id text_start_id use_rotary_pos_emb",
    names={"attention_head_dim": "head_dim"},
    mlp_bias=False,
    qk_norm=QkNorm.PER_HEAD,
)
#: Ministral3ForCausalLM: Mistral without a window by default.
MINISTRAL3 = Decoder(defaults=class_defaults("ministral3") | {"head_dim": 128}, bias=False, types=one_window)
#: ApertusForCausalLM: QK-norm and an MLP without a gate, whose activation has two learned numbers.
APERTUS = Decoder(
    defaults=class_defaults("apertus") | {"hidden_act": "xielu"},
    constants={"hidden_act": "xielu", "qk_norm": True, "post_norm": False, "mlp_bias": False},
    qk_norm=QkNorm.PER_HEAD,
    gated=False,
    mlp_bias=False,
    parameters=2,
)
#: ArceeForCausalLM: an MLP without a gate.
ARCEE = Decoder(defaults=class_defaults("arcee") | {"hidden_act": "relu2"}, gated=False)
#: InternLM3ForCausalLM (remote code): biases of the attention's input matrices apart from those of all others.
INTERNLM3 = Decoder(
    defaults=class_defaults("internlm3") | {"head_dim": 128},
    names={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
    out_bias="mlp_bias",
)
#: IQuestCoderForCausalLM (remote code): Llama.
IQUESTCODER = Decoder(defaults=class_defaults("iquestcoder") | {"head_dim": 128})
#: HeliumForCausalLM: Llama without a bias on the attention's output.
HELIUM = Decoder(defaults=class_defaults("helium") | {"head_dim": 128}, out_bias=False)
#: NanoChatForCausalLM: norms without weights, also on the embeddings; an MLP without a gate.
NANOCHAT = Decoder(
    defaults=class_defaults("nanochat") | {"hidden_act": "relu2", "final_logit_softcapping": 15.0},
    norm=bare_rms_norm,
    qk_norm=QkNorm.WEIGHTLESS,
    gated=False,
    mlp_bias=False,
    embedding_norm=True,
    caps=True,
)
#: BitNetForCausalLM: a further norm before the last matrix of attention and MLP.
BITNET = Decoder(defaults=class_defaults("bitnet") | {"hidden_act": "relu2"}, mlp_bias=False, sub_norms=True)
#: Emu3ForCausalLM, its language model: Llama.
EMU3 = Decoder(defaults={**sizes(4096, 14336, 32, 32, 184622, 9216), "num_key_value_heads": 8})
#: HyperCLOVAXForCausalLM: Granite with norms after each part.
HYPERCLOVAX = Decoder(
    defaults=class_defaults("hyperclovax") | {"use_post_norm": True},
    ignored="attention_multiplier",
    around_if="use_post_norm",
    factors=True,
)
#: Phi4MultimodalForCausalLM and its first form (phi4mm, remote code): Phi-3 beside towers for images and sound.
PHI4_MULTIMODAL = replace(
    PHI3,
    defaults=class_defaults("phi4_multimodal"),
    constants={**PHI3.constants, "mlp_bias": False},
    ignored="interpolate_factor embd_layer audio_processor img_processor speech_lora vision_lora embed_layer",
    beside="vision and audio parts or their LoRA matrices",
)


def _llama4_types(config: Config) -> list[str]:
    """`chunked` for layers with rope, else `full`."""
    types = ["chunked" if rope else "full" for rope in rope_layers(config)]
    config.expect("layer_types", [f"{word}_attention" for word in types])
    return types


def _llama4_attention(config: Config, dtype: Dtype) -> dict[str, Attention]:
    """Attention by layer type; only layers with rope have QK-norm, which has no weights."""
    full = parts.attention(config, dtype, parts.projections(config), head_dim=128)
    norm = QkNorm.WEIGHTLESS if config.flag("use_qk_norm", default=True) else QkNorm.NONE
    chunked = replace(full, qk_norm=norm, chunk=config.count("attention_chunk_size", 8192))
    return {"chunked": chunked, "full": replace(full, rotary_dim=0)}


def _llama4_placement(config: Config) -> list[str]:
    """`moe` in the layers that `moe_layers` lists, or every `interleave_moe_layer_step`-th; else `dense`."""
    depth, step = layer_count(config), config.count("interleave_moe_layer_step", 1)
    listed = config.numbers("moe_layers", range(step - 1, depth, step))
    return ["moe" if layer in listed else "dense" for layer in range(depth)]


def _llama4_experts(config: Config, dtype: Dtype) -> Moe:
    """Experts with fused gate and up and a shared expert of the same size."""
    routed = parts.wide_moe(config, dtype)
    return replace(routed, expert=replace(routed.expert, fused=True), shared=routed.expert)


#: Llama4ForCausalLM: chunked attention with rope, full attention without rope in every fourth layer; experts.
LLAMA4 = Decoder(
    # a factor on queries at long contexts, a setting of the quantizer, and a width that only dense layers have
    ignored="attn_temperature_tuning floor_scale attn_scale for_llm_compressor intermediate_size_mlp",
    mixers=_llama4_attention,
    types=_llama4_types,
    placement=_llama4_placement,
    dense=lambda config, dtype: parts.mlp(config, dtype, config.count("intermediate_size_mlp")),
    experts=_llama4_experts,
)

#: Layers with cross attention by default, and rows of the embedding for images beyond the vocabulary.
MLLAMA_CROSS_LAYERS, MLLAMA_IMAGE_ROWS = (3, 8, 13, 18, 23, 28, 33, 38), 8


def _mllama_layers(model: Model, config: Config) -> Model:
    """The model without its layers of cross attention, whose weights are stored."""
    depth, layer, attention = layer_count(config), model.layers[0], attention_of(model.layers[0])
    listed = config.numbers("cross_attention_layers", MLLAMA_CROSS_LAYERS)
    own = tuple(number for number in range(depth) if number not in listed)
    if not own:
        raise UserError(f"{config.where}: field 'cross_attention_layers' leaves no layer for text")
    hidden, width = attention.hidden, attention.heads * attention.head_dim
    matrices = 2 * hidden * (width + attention.kv_heads * attention.head_dim)
    matrices += 3 * hidden * config.count("intermediate_size")
    per_layer = matrices + 2 * hidden + 2 * attention.head_dim + 2  # norms, QK-norms, gates
    skipped = depth - len(own)
    text = replace(
        model,
        layers=(replace(layer, repeats=len(own), numbers=own),),
        embedding=replace(model.embedding, vocabulary=model.embedding.vocabulary + MLLAMA_IMAGE_ROWS),
        notes=(*model.notes, f"{skipped} layers with cross attention are stored and not run, as without images"),
    )
    return parts.with_stored(text, cross_attention=skipped * per_layer)


#: MllamaForCausalLM (Llama 3.2 Vision), a pass over text alone: without an image it skips its cross attention.
MLLAMA = Decoder(
    defaults={**sizes(4096, 14336, 40, 32, 128256, 131072), "num_key_value_heads": 8},
    constants={"tie_word_embeddings": False},
    bias=False,
    finish=_mllama_layers,
)
