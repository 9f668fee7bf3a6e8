"""Fields of a config.json that are left out, with transformers' defaults, and fields that change no count."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

#: Names of the columns of _TABLE.
_FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
#: model_type and the defaults of its class; - where it has none.  Source: the configuration classes of transformers
#: 5.23.0 (https://github.com/huggingface/transformers, src/transformers/models).
_TABLE = """
afmoe 2048 32 16 - 6144 200192 16384
apertus 4096 32 32 - 14336 131072 65536
arcee 2560 32 32 - 18432 32000 4096
aria_text 4096 32 32 - 4096 32000 2048
axk1 7168 61 64 64 18432 163840 32768
axk2 2048 48 32 32 5120 163840 131072
bailing_hybrid 2560 42 32 32 6144 157184 -
bamba 4096 32 32 8 14336 128000 262144
bart 1024 12 16 - - 50265 1024
beam 5120 52 48 8 20480 151936 8192
bert 768 12 12 - 3072 30522 512
bert-generation 1024 24 16 - 4096 50358 512
big_bird 768 12 12 - 3072 50358 4096
bigbird_pegasus 1024 16 16 - - 96103 4096
biogpt 1024 24 16 - 4096 42384 1024
bitnet 2560 30 20 5 6912 128256 2048
blenderbot 2560 2 32 - - 8008 128
blenderbot-small 512 8 16 - - 50265 512
bloom 64 2 8 - - 250880 -
camembert 768 12 12 - 3072 30522 512
codegen 4096 28 16 - - 50400 2048
cohere 8192 40 64 - 22528 256000 8192
cohere2 8192 40 64 - 22528 256000 8192
cohere2_moe 8192 40 64 - 22528 256000 8192
cohere_compass_text 8192 40 64 - 22528 256000 8192
cosmos3_edge_text 2048 28 16 8 9216 131072 131072
cpmant 4096 48 32 - - 30720 -
ctrl 1280 48 16 - - 246534 256
cwm 6144 64 48 8 21504 128256 131072
data2vec-text 768 12 12 - 3072 30522 512
dbrx 2048 24 16 - - 32000 2048
deepseek_ocr2_text 4096 32 32 - 11008 102400 2048
deepseek_v2 4096 32 32 - 11008 102400 2048
deepseek_v3 7168 61 128 128 18432 129280 4096
deepseek_v32 7168 61 128 128 18432 129280 163840
deepseek_v4 4096 43 64 1 2048 129280 1048576
diffllama 2048 16 32 - 8192 32000 2048
diffusion_gemma_text 2304 30 8 4 9216 262144 131072
doge 1024 32 8 - 2048 32768 2048
dots1 4608 62 32 32 10944 152064 2048
dots3_note_text 5120 46 128 128 13824 152064 524288
electra 256 12 4 - 1024 30522 512
embedding_gemma2_text 512 24 4 2 2048 262144 262144
ernie 768 12 12 - 3072 30522 512
ernie4_5 1024 18 16 2 3072 103424 131072
ernie4_5_moe 2560 28 20 4 12288 103424 131072
ernie4_5_vl_moe_text 2560 28 20 4 12288 103424 131072
exaone4 4096 32 32 32 16384 102400 2048
exaone_moe 4096 32 32 32 16384 102400 2048
falcon 4544 32 71 - - 65024 2048
falcon_h1 4096 32 32 8 14336 128000 8192
falcon_mamba 768 32 - - - 50280 -
flex_olmo 4096 32 32 - 11008 100352 4096
flint 2048 49 32 4 6144 150144 262144
gemma 3072 28 16 16 24576 256000 8192
gemma2 2304 26 8 4 9216 256000 8192
gemma3_text 2304 26 8 4 9216 262208 131072
gemma3n_text 2048 35 8 2 16384 262400 32768
gemma4_text 2304 30 8 4 9216 262144 131072
gemma4_unified_text 2304 30 8 4 9216 262144 262144
git 768 6 12 - 3072 30522 1024
glm 4096 40 32 2 13696 151552 131072
glm4 4096 40 32 2 13696 151552 131072
glm4_moe 4096 46 96 8 10944 151552 131072
glm4_moe_lite 2048 47 20 20 10240 154880 202752
glm4v_moe_text 4096 46 96 8 10944 151424 65536
glm4v_text 4096 40 32 2 13696 151552 32768
glm5_next_text 4096 45 64 64 12288 154880 1048576
glm_image_text 4096 40 32 2 13696 168064 131072
glm_moe_dsa 6144 78 64 64 12288 154880 202752
glm_ocr_text 1024 16 16 8 4096 59392 131072
gpt-sw3 768 12 12 - - 50257 1024
gpt2 768 12 12 - - 50257 1024
gpt_bigcode 768 12 12 - - 50257 1024
gpt_neo 2048 24 16 - - 50257 2048
gpt_neox 6144 44 64 - 24576 50432 2048
gpt_neox_japanese 2560 32 32 - - 32000 2048
gpt_oss 2880 36 64 8 2880 201088 131072
gptj 4096 28 16 - - 50400 2048
granite 4096 32 32 - 11008 32000 2048
granite4_vision_text 4096 32 32 - 11008 32000 2048
granite_docling_text 1024 28 16 4 2048 133800 32768
granite_swa 2560 24 20 4 8192 100352 8192
granitemoe 4096 32 32 - 11008 32000 2048
granitemoe_swa 4096 32 32 - 11008 32000 2048
granitemoehybrid 4096 32 32 - 11008 32000 2048
granitemoeshared 4096 32 32 - 11008 32000 2048
helium 2560 24 20 20 7040 48000 4096
hrm_text 1536 16 12 - 4096 151808 2048
hunyuan_v1_dense 4096 32 32 - 11008 290943 2048
hunyuan_v1_moe 4096 32 32 - 11008 290943 2048
hunyuan_vl_text 4096 32 32 - 11008 290943 2048
hy_v3 4096 80 64 8 13312 120832 131072
hy_v4 2816 34 32 32 6912 120832 262144
hyperclovax 4096 32 32 - 11008 32000 2048
inkling2_text 4608 48 48 8 2304 201024 1048576
inkling_text 6144 66 64 8 24576 201024 131072
internlm3 4096 48 32 2 10240 128512 32768
iquestcoder 5120 80 40 8 27648 76800 131072
jais2 3328 32 26 - 26624 150272 8192
jamba 4096 32 32 8 14336 65536 262144
jetmoe 2048 12 - 16 5632 32000 4096
kimi_linear 2304 27 32 32 9216 163840 -
kolibri1 2560 50 48 4 - 128000 262144
kyutai_speech_to_text 2048 48 32 - - 4001 750
laguna 2048 40 48 8 8192 100352 131072
lfm2 2560 32 32 8 12288 65536 128000
lfm2_moe 2048 32 32 8 7168 65536 128000
lfm3 2048 24 16 4 7680 128000 128000
llama 4096 32 32 - 11008 32000 2048
llama4_text 5120 48 40 8 8192 202048 131072
longcat_flash 6144 - 64 - 12288 131072 131072
mamba 768 32 - - - 50280 -
mamba2 4096 64 - - - 32768 -
marian 1024 12 16 - - 58101 1024
mbart 1024 12 16 - - 50265 1024
megatron-bert 1024 24 16 - 4096 29056 512
mellum 2304 28 32 4 7168 98304 131072
mimo_v2_flash 4096 48 64 4 16384 152576 131072
minicpm3 2560 62 40 40 6400 73448 32768
minimax 4096 32 32 8 14336 32000 131072
minimax_m2 3072 62 48 8 1536 200064 196608
minimax_m3_vl_text 6144 60 64 4 3072 200064 524288
ministral 4096 32 32 8 14336 32000 131072
ministral3 4096 34 32 8 14336 131072 262144
mistral 4096 32 32 8 14336 32000 131072
mistral_large4_text 6144 72 64 64 24576 204800 1048576
mixtral 4096 32 32 8 14336 32000 131072
modernbert-decoder 768 22 12 - 1152 50368 8192
molmo2_text 4096 36 32 8 12288 151936 36864
moshi 4096 32 32 - - 32000 3000
mpt 2048 24 16 - - 50368 -
muse_glimmer_text 6656 52 32 2 19968 202048 131072
muse_spark_text 8192 62 128 16 16384 202048 1048576
mvp 1024 12 16 - - 50267 1024
nanochat 768 12 6 - 8192 50304 2048
nemotron 6144 32 48 - 24576 256000 4096
nemotron_h 4096 - 32 8 21504 131072 4096
olmo 4096 32 32 - 11008 50304 2048
olmo2 4096 32 32 - 11008 50304 2048
olmo3 4096 32 32 - 11008 50304 2048
olmo_hybrid 3840 32 30 - 11008 100352 65536
olmoe 2048 16 16 - 2048 50304 4096
openai-gpt 768 12 12 - - 40478 512
opt 768 12 12 - - 50272 2048
paddleocr_vl_text 1024 18 16 2 3072 103424 131072
pegasus 1024 12 16 - - 50265 1024
persimmon 4096 36 64 - 16384 262144 16384
phi 2048 24 32 - 8192 51200 2048
phi3 3072 32 32 - 8192 32064 4096
phi4_multimodal 3072 32 32 8 8192 200064 131072
phimoe 4096 32 32 8 6400 32064 131072
plbart 768 6 12 - - 50005 1024
pp_formulanet_text 512 12 16 - - 50000 2560
prophetnet 1024 - 16 - - 30522 512
qwen2 4096 32 32 32 22016 151936 32768
qwen2_5_omni_text 3584 28 28 4 18944 152064 32768
qwen2_5_vl_text 8192 80 64 8 29568 152064 32768
qwen2_moe 2048 24 16 16 5632 151936 32768
qwen2_vl_text 8192 80 64 8 29568 152064 32768
qwen3 4096 32 32 32 22016 151936 32768
qwen3_5_moe_text 2048 40 16 2 - 248320 32768
qwen3_5_text 4096 32 16 4 12288 248320 32768
qwen3_moe 2048 24 32 4 6144 151936 32768
qwen3_next 2048 48 16 2 5632 151936 32768
qwen3_omni_moe_talker_text 1024 20 16 2 2048 3072 32768
qwen3_omni_moe_text 2048 28 28 4 18944 3584 32768
qwen3_vl_moe_text 2048 24 16 16 5632 151936 128000
qwen3_vl_text 4096 32 32 32 22016 151936 128000
qwen4_exp_text 2048 40 16 2 - 248320 32768
recurrent_gemma 2560 26 10 - 7680 256000 -
reformer 256 - 12 - - 320 4096
rembert 1152 32 18 - 4608 250300 512
roberta 768 12 12 - 3072 50265 512
roberta-prelayernorm 768 12 12 - 3072 50265 512
roc_bert 768 12 12 - 3072 30522 512
roformer 768 12 12 - 3072 50000 1536
rwkv 4096 32 - - - 50277 1024
seed_oss 4096 64 80 8 27648 155136 524288
smollm3 2048 36 16 4 11008 128256 32768
solar_open 4096 48 64 8 - 196608 131072
speech_to_text 256 12 4 - - 10000 -
stablelm 2560 32 32 32 6912 50304 4096
starcoder2 3072 30 24 2 12288 49152 4096
t5gemma2_text 2304 26 8 4 9216 262208 131072
trocr 1024 12 16 - - 50265 512
unlimited_ocr_text 1280 12 10 10 6848 129280 32768
vaultgemma 2304 26 8 4 9216 256000 8192
voxtral_realtime_text 4096 32 32 8 14336 32000 131072
whisper 384 4 6 6 - 51865 -
xglm 1024 24 16 - - 256008 2048
xlm 2048 12 16 - - 30145 512
xlm-roberta 768 12 12 - 3072 30522 512
xlm-roberta-xl 2560 36 32 - 10240 250880 514
xlnet 1024 24 16 - - 32000 -
xlstm 4096 32 - - - 50304 -
xmod 768 12 12 - 3072 30522 512
youtu 2048 32 16 16 6144 128256 131072
zamba 3712 76 16 16 14848 32000 4096
zamba2 2560 54 32 - - 32000 4096
zaya 2048 40 8 2 - 262272 131072
"""


#: Further sizes of classes whose configs may leave out experts and latents.
_LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_MORE: dict[str, dict[str, int]] = {
    "gpt_oss": {"num_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128, "head_dim": 64},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
}


@cache
def _rows() -> dict[str, list[str]]:
    """Class -> its row of the table."""
    return {name: values for name, *values in (line.split(" ") for line in _TABLE.strip().split("\n"))}


def class_defaults(model_type: str) -> dict[str, int]:
    """Sizes that the class of this model_type has by default; empty for an unknown type."""
    values = _rows().get(model_type)
    if values is None:
        return {}
    sizes = {field: int(value) for field, value in zip(_FIELDS, values, strict=True) if value != "-"}
    return sizes | _MORE.get(model_type, {})


#: Reason -> fields that tools and checkpoints add.
_BY_REASON: dict[str, str] = {
    "identity": "_attn_implementation_autoset _attn_implementation_internal transformers.js_config is_llama_config "
    "for_llm_compressor unsloth_version unsloth_fixed model_name base_model base_model_name_or_path "
    "language license tags library_name revision _diffusers_version onnx_export _auto_class custom_code "
    "tokenizer_name is_composition torchscript_export trust_remote_code sentence_transformers checkpoint_format "
    "paddlenlp_version "
    "_flash_attn_2_enabled "
    "sparsity_config",
    "tokens and their tables of the tokenizer": "bos_token eos_token pad_token unk_token image_token ignore_index "
    "eod_token fim_spm_token chat_template add_bos_token add_eos_token im_start_id im_end_id "
    "ignore_id",
    "training only": "dropout_rate hidden_dropout_rate attn_dropout_prob emb_dropout_prob drop_path_rate "
    "loss_decay_gamma num_anchors z_loss_weight use_reentrant gradient_checkpointing_kwargs label_smoothing "
    "freeze_backbone recompute recompute_granularity initializer_factor "
    "init_device init_config init_method init_scale zero_init_branch embedding_init_std "
    "moe_layer_aux_loss use_aux_loss mup_init "
    "token_dropout moe_dropout use_recompute num_labels "
    "z_loss router_bias_update_rate",
    "run-time settings of serving tools": "prefill_chunk_size attention_sink_size context_window_size "
    "tensor_parallel_shards pipeline_parallel_stages max_batch_size neuron_config neuron mlc_config "
    "conv_template mean_gen_len max_gen_len shift_fill_factor use_sdpa use_flash_attention use_flash_attn2 "
    "use_flash_attention_2 flash_attention flash_attn attn_impl attention_backend use_xformers use_triton use_kernel "
    "use_kernels fused_rms_norm fused_rotary_emb fused_bias_fc fused_dropout_add_ln fused_mlp use_fused_rms_norm "
    "use_fused_rope use_fused_mlp use_memory_efficient_attention use_unpadded_attention unpad_inputs "
    "memory_efficient tp_size tp_degree tensor_parallel tensor_parallel_degree tensor_parallel_output "
    "sequence_parallel expert_parallel expert_tensor_parallelism pipeline_parallel_degree expert_model_parallel_size "
    "enable_expert_parallel reference_compile deterministic deterministic_flash_attn "
    "checkpointing gradient_checkpointing_layers use_parallel_loss bf16 fp16 fp32 softmax_in_fp32 "
    "fuse_attention_qkv fuse_attention_ffn fuse_rms_norm fuse_linear fuse_norm fuse_swiglu fuse_cross_entropy "
    "fuse_linear_cross_entropy use_l2warp use_grouped_mm use_megablocks return_legacy_cache "
    "assistant_config generation_config dola_layers max_new_tokens num_assistant_tokens renormalize_logits "
    "penalty_alpha use_unpad logits_to_keep num_logits_to_keep low_cpu_mem_usage device_map disable_exllama "
    "llama.cpp gguf_file torch_compile use_return_dict attn_mode "
    "experts_implementation _experts_implementation",
    "numerical detail that changes no work": "mrope_section mrope_interleaved rope_type rope_scaling_factor "
    "rope_scaling_type rope_high_freq_factor rope_traditional dynamic_ntk use_dynamic_ntk "
    "mscale mscale_all_dim attention_softmax_scale "
    "rope_position_interpolation_factor "
    "norm_dtype rms_norm_dtype residual_dtype",
    "multi-token prediction: an extra block that ordinary decoding does not run": "mtp_loss_scaling_factor "
    "mtp_num_layers num_nextn_layers mtp_lambda",
    "vision and audio: only the language model is counted": "language_model_only num_image_tokens image_seq_length "
    "image_size "
    "vision_feature_select_strategy multimodal_max_length mm_vision_tower mm_projector_type mm_hidden_size "
    "mm_use_im_start_end mm_use_im_patch_token mm_vision_select_layer mm_vision_select_feature mm_patch_merge_type "
    "mm_projector_lr mm_tunable_parts mm_vision_tower_lr mm_resampler_type mm_spatial_pool_mode tune_mm_mlp_adapter "
    "freeze_mm_mlp_adapter unfreeze_mm_vision_tower use_mm_proj image_aspect_ratio image_grid_pinpoints "
    "image_crop_resolution image_split_resolution vision_tower vision_tower_pretrained pos_skipping_range "
    "s2 s2_scales tune_language_model tune_vision_tower tune_mm_projector video_fps num_video_frames",
}
#: Field -> reason.
HARMLESS_FIELDS: dict[str, str] = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
#: Endings of names -> reason: the fields of these names are alike in all configs.
HARMLESS_ENDINGS: dict[str, str] = {
    "_token_id": "token ids, no shapes",
    "_token_ids": "token ids, no shapes",
    "_token_index": "token ids, no shapes",
    "_dropout": "training only",
    "_dropout_prob": "training only",
    "_dropout_rate": "training only",
    "_pdrop": "training only",
    "_loss_coef": "training only",
    "_loss_coeff": "training only",
    "_loss_weight": "training only",
    "_loss_alpha": "training only",
    "_init_std": "training only",
    "_initializer_range": "training only",
    "_eps": "numerical detail that changes no work",
    "_epsilon": "numerical detail that changes no work",
    "_theta": "numerical detail that changes no work",
}
#: Switch -> fields without a meaning while the switch is off.
SWITCHED_OFF: dict[str, tuple[str, ...]] = {
    "use_sliding_window": ("use_sliding_window", "sliding_window", "max_window_layers"),
    "use_mrope": ("use_mrope",),
}


def is_harmless(name: str, fields: Mapping[str, Any]) -> bool:
    """Whether the field `name`, which no parser read, changes nothing that is counted.

    A null says that a part is absent, as it is for a parser that does not know the part.
    """
    value = fields[name]
    if value is None or name in HARMLESS_FIELDS or name.endswith(tuple(HARMLESS_ENDINGS)):
        return True
    if name == "layer_types" and isinstance(value, list):
        return set(map(str, value)) == {"full_attention"}
    return any(name in names and fields.get(switch) is False for switch, names in SWITCHED_OFF.items())
