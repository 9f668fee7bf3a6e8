"""Fields of a config that change no shape and no count, in one list, with the reason."""

from __future__ import annotations

_REASONS: dict[str, str] = {
    "identity": "_name_or_path name_or_path architectures auto_map model_type transformers_version torch_dtype dtype "
    "finetuning_task id2label label2id problem_type _commit_hash custom_pipelines _from_model_config",
    "tokens, not shapes": "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id "
    "forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens bad_words_ids "
    "tokenizer_class prefix",
    "training only": "initializer_range init_std init_method_std attention_dropout attn_pdrop embd_pdrop resid_pdrop "
    "dropout hidden_dropout hidden_dropout_prob attention_probs_dropout_prob activation_dropout embedding_dropout "
    "layerdrop classifier_dropout summary_activation summary_first_dropout summary_proj_to_labels summary_type "
    "summary_use_proj router_aux_loss_coef router_jitter_noise input_jitter_noise output_router_logits "
    "router_z_loss_coef "
    "aux_loss_alpha seq_aux gradient_checkpointing rescale_prenorm_residual use_cache_in_training ffn_dropout "
    "residual_dropout attn_dropout emb_pdrop ffn_pdrop resid_dropout",
    "numerical detail, no work": "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon "
    "layernorm_epsilon "
    "rope_theta rope_scaling rope_parameters rope_local_base_freq rotary_emb_base rope_ratio partial_rope_base "
    "original_max_position_embeddings attention_softmax_in_fp32 apply_residual_connection_post_layernorm_fp32 "
    "scale_attention_softmax_in_fp32 attention_bias_in_fp32 residual_in_fp32 query_pre_attn_scalar scale_attn_weights "
    "scale_attn_by_inverse_layer_idx reorder_and_upcast_attn softmax_scale slow_but_exact initializer_cutoff_factor "
    "time_step_min time_step_max time_step_floor time_step_limit time_step_scale time_step_init_scheme "
    "rope_interleave rope_interleaved routed_scaling_factor",
    "which experts are chosen, not how many": "norm_topk_prob n_group topk_group scoring_func",
    "multi-token prediction, a block beside the model that a plain step does not run": "num_nextn_predict_layers "
    "num_mtp_layers mtp_transformer_layers num_mtp_modules use_mtp mtp_num_hidden_layers mtp_use_dedicated_embeddings",
    "images and sound: the language model alone is counted": "vision_config audio_config mm_tokens_per_image "
    "image_token_index boi_token_index eoi_token_index image_token_id video_token_id audio_token_id boi_token_id "
    "eoi_token_id boa_token_id eoa_token_id vision_start_token_id vision_end_token_id vision_soft_tokens_per_image "
    "audio_soft_tokens_per_image projector_hidden_act multimodal_projector_bias vision_feature_layer "
    "spatial_merge_size",
    "run time": "use_cache pretraining_tp return_dict output_attentions output_hidden_states is_decoder "
    "is_encoder_decoder add_cross_attention tie_encoder_decoder task_specific_params gradient_checkpointing "
    "ep_size attn_implementation _attn_implementation use_flash_attn cross_attention_hidden_size "
    "chunk_size_feed_forward "
    "torchscript use_bfloat16 max_length min_length do_sample early_stopping num_beams num_beam_groups "
    "diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size num_return_sequences output_scores return_dict_in_generate remove_invalid_values "
    "exponential_decay_length_penalty pruned_heads tf_legacy_loss cache_implementation skip_bos output_past",
    "read once for all architectures": "quantization_config max_position_embeddings tie_word_embeddings vocab_size",
}

#: field -> reason.
BOOKKEEPING: dict[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
