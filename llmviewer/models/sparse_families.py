"""Decoders with grouped-query attention and experts, one entry each: fields, norms, windows of layers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.layers.attention import QkNorm
from llmviewer.models import parts
from llmviewer.models.config import Config, head_count, layer_count, layer_types
from llmviewer.models.decoder import AFTER, AROUND, Decoder
from llmviewer.models.experts import (
    DenseFirst,
    Experts,
    from_start_to_end,
    listed_or_everywhere,
    listed_or_first_dense,
    same_in_every_layer,
    sparse_layers,
)
from llmviewer.models.glm import rounded_head_dim
from llmviewer.models.layer_patterns import FullEvery, first_of_four, full_first, layers_with_base
from llmviewer.models.model import Model

#: Attention with QK-norm per head and 128 elements per head, as in Qwen3.
_normed_128 = partial(Decoder, qk_norm=QkNorm.PER_HEAD, head_dim=128)
#: DeepSeek-V3's way to choose experts: sigmoid scores plus a stored correction.
CORRECTED = Experts(correction_bias=True)

glm4_moe = Decoder(
    prepare=rounded_head_dim,
    out_bias=False,
    qk_norm=QkNorm.PER_HEAD,
    qk_norm_if="use_qk_norm",
    experts=CORRECTED,
    placement=DenseFirst(default=1),
    defaults={"partial_rotary_factor": 0.5},
)

solar_open = Decoder(
    out_bias=False,
    head_dim=128,
    experts=CORRECTED,
    constants={"first_k_dense_replace": 0, "use_qk_norm": False},
)

dots1 = Decoder(
    qk_norm=QkNorm.PER_HEAD,
    types=partial(full_first, default=62),
    experts=CORRECTED,
    placement=DenseFirst(default=0),
    constants={"topk_method": "noaux_tc", "moe_layer_freq": 1, "use_sliding_window": False},
)


ERNIE_EXPERTS = Experts(
    experts=("moe_num_experts", "num_experts"),
    chosen=("moe_k", "num_experts_per_tok"),
    shared="moe_num_shared_experts",
    shared_bias="use_bias",
    correction_weight=True,
)
ernie4_5_moe = Decoder(
    bias="use_bias",
    experts=ERNIE_EXPERTS,
    placement=from_start_to_end,
    constants={"use_rmsnorm": True, "moe_use_aux_free": True, "moe_gate": "topk"},
    ignored="moe_capacity moe_norm_min moe_aux_loss_lambda moe_use_hard_gate compression_ratio",
    tied=True,
    head_bias="use_bias",
)

granitemoe = Decoder(
    experts=Experts(width="intermediate_size", shared=""),
    factors=True,
    constants={"mlp_bias": False},
    ignored="attention_multiplier",  # replaces 1 / sqrt(head_dim): no extra work
)

granitemoeshared = replace(
    granitemoe, experts=Experts(width="intermediate_size", shared_width="shared_intermediate_size")
)


granitemoe_swa = replace(
    granitemoeshared, sinks=True, types=first_of_four, rope=layers_with_base, defaults={"sliding_window": 128}
)


def _hunyuan_fields(config: Config) -> None:
    """One number of experts per layer becomes one number; a width of experts must be that of the MLP."""
    same_in_every_layer(config, "num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert")
    config.expect("moe_intermediate_size", config.get("intermediate_size"))
    if config.has("attention_head_dim"):
        config.defaults(head_dim=config.get("attention_head_dim"))


hunyuan_v1_moe = Decoder(
    prepare=_hunyuan_fields,
    qk_norm=QkNorm.PER_HEAD,
    experts=Experts(width="intermediate_size", chosen=("moe_topk",), shared_width="intermediate_size"),
    constants={
        "num_shared_expert": 1, "use_qk_norm": True, "use_cla": False, "use_mixed_mlp_moe": True,
        "mlp_bias": False, "norm_type": "rms", "moe_layer_num_skipped": 0, "kv_lora_rank": None,
        "use_mla": False, "q_lora_rank": None, "add_classification_head": False, "use_rotary_pos_emb": True,
    },
    ignored="eod_token_id sep_token_id cla_share_factor class_num dense_list im_end_id im_newline_id im_start_id "
    "mask_init_id moe_drop_tokens moe_random_routing_dropped_token num_media_embeds org_vocab_size pad_id "
    "pool_type position_embedding_xdrope skip_cls_token text_end_id text_start_id video_end_id video_start_id "
    "group_limited_greedy qk_nope_head_dim qk_rope_head_dim v_head_dim attention_head_dim anyres_pooling_size "
    "vit_add_patchemb_bias vit_input_resolution vit_mapping_type vit_norm_type vit_patch vit_remove_prenorm "
    "vit_token vit_used_rms_norm",
)  # fmt: skip


aria_text = Decoder(
    experts=Experts(
        width="intermediate_size", experts=("moe_num_experts",), chosen=("moe_topk",), shared="moe_num_shared_experts"
    ),
    defaults={"moe_num_experts": 8, "moe_topk": 2, "moe_num_shared_experts": 2},
    constants={"mlp_bias": False},
    ignored="moe_z_loss_coeff moe_aux_loss_coeff",
)

flex_olmo = Decoder(
    qk_norm=QkNorm.WHOLE,
    experts=Experts(width="intermediate_size", shared=""),
    places=AFTER,
)


hy_v3 = _normed_128(
    experts=Experts(shared="num_shared_experts", correction_bias=True),
    placement=listed_or_first_dense,
    constants={"mlp_bias": False, "qk_norm": True},
    ignored="enable_moe_fp32_combine router_scaling_factor",
)


def _exaone_types(config: Config) -> list[str]:
    """The layers as `layer_types` lists them, or by `sliding_window_pattern`: a number, or letters such as `LLLG`."""
    pattern = config.get("sliding_window_pattern", 4)
    if isinstance(pattern, str):
        depth = layer_count(config)
        words = ["full" if pattern[at % len(pattern)] == "G" else "sliding" for at in range(depth)]
        return layer_types(config, ("sliding", "full"), [*words[:-1], "full"])
    return FullEvery("sliding_window_pattern", 4)(config)


exaone_moe = Decoder(
    qk_norm=QkNorm.PER_HEAD,
    unrotated=("full",),
    types=_exaone_types,
    experts=Experts(shared="num_shared_experts", correction_bias=True),
    placement=DenseFirst(default=1),
    ignored="is_moe_layer rope_interleave",
)


def _flint_types(config: Config) -> list[str]:
    """Full attention in the first two layers, the last, and every fourth from the second."""
    last = layer_count(config) - 1
    full = [at < 2 or at % 4 == 1 or at == last for at in range(last + 1)]
    return layer_types(config, ("sliding", "full"), ["full" if yes else "sliding" for yes in full])


flint = _normed_128(
    sinks=True,
    unrotated=("full",),
    types=_flint_types,
    experts=Experts(shared_width="shared_expert_intermediate_size"),
    placement=sparse_layers,
    defaults={"sliding_window": 513, "mlp_only_layers": [0, 1]},
)

kolibri1 = _normed_128(
    unrotated=("full",),
    types=FullEvery("", 5),
    experts=Experts(shared_width="shared_expert_intermediate_size", correction_bias=True),
    places=AROUND,
    defaults={"sliding_window": 513},
)

mellum = _normed_128(
    types=lambda config: layer_types(config, ("sliding", "full"), ["full"] * layer_count(config)),
    experts=Experts(shared=""),
    placement=listed_or_everywhere,
    ignored="mtp_layer_types mtp_mlp_layer_types",
)


afmoe = _normed_128(
    gate=True,
    unrotated=("full",),
    types=FullEvery("global_attn_every_n_layers", 4),
    experts=Experts(shared="num_shared_experts", correction_weight=True),
    placement=DenseFirst("num_dense_layers", 1),
    places=AROUND,
    defaults={"sliding_window": 1024},
    constants={"score_func": "sigmoid"},
    ignored="global_attn_every_n_layers route_scale route_norm load_balance_coeff num_expert_groups "
    "num_limited_groups use_grouped_mm",
    scaled="mup_enabled",
)  # fmt: skip


def _every_sixth_and_last(config: Config) -> list[str]:
    """Full attention in every sixth layer and in the last."""
    last = layer_count(config) - 1
    default = ["full" if at % 6 == 5 or at == last else "sliding" for at in range(last + 1)]
    return layer_types(config, ("sliding", "full"), default)


def _gate_biases(model: Model, config: Config) -> Model:
    """The model with a bias per head of the attention gates."""
    return parts.with_stored(model, gate_bias=layer_count(config) * head_count(config))


beam = _normed_128(
    gate=True,
    unrotated=("full",),
    types=_every_sixth_and_last,
    experts=Experts(shared="", correction_bias=True),
    placement=DenseFirst(default=3),
    places=AROUND,
    defaults={
        **{"sliding_window": 512, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2560},
        "final_logit_softcapping": 30.0,
    },
    caps=True,
    finish=_gate_biases,
)
