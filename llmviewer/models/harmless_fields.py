"""Fields of a config.json that change no shape and no count, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
