"""Decoders with grouped-query attention and experts, one entry each: the names of their fields and their norms."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.layers.attention import QkNorm
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.experts import (
    DenseFirst,
    Experts,
    from_start_to_end,
    listed_or_first_dense,
    same_in_every_layer,
)
from llmviewer.models.fields import head_count, hidden_size, layer_count, layer_types
from llmviewer.models.layer_patterns import first_of_four
from llmviewer.models.model import Model
from llmviewer.models.sparse_decoder import NORMED_128, GroupedQuery, SparseDecoder

#: DeepSeek-V3's way to choose experts: sigmoid scores plus a stored correction.
CORRECTED = Experts(correction_bias=True)


def _glm_head_dim(config: Config) -> None:
    """Without `head_dim` a head has hidden_size / heads elements, rounded down."""
    config.defaults(head_dim=hidden_size(config) // head_count(config))


glm4_moe = SparseDecoder(
    prepare=_glm_head_dim,
    mixers=GroupedQuery(out_bias=False, qk_norm=QkNorm.PER_HEAD, qk_norm_field="use_qk_norm"),
    experts=CORRECTED,
    placement=DenseFirst(default=1),
    defaults={"partial_rotary_factor": 0.5},
)

solar_open = SparseDecoder(
    mixers=GroupedQuery(out_bias=False, head_dim=128),
    experts=CORRECTED,
    expected={"first_k_dense_replace": (0,), "use_qk_norm": (False,)},
)


def _dots1_types(config: Config) -> list[str]:
    """`sliding` from layer `max_window_layers` on, if there is a window."""
    first = config.count("max_window_layers", 62, minimum=0)
    windowed = config.has("sliding_window")
    default = ["sliding" if windowed and at >= first else "full" for at in range(layer_count(config))]
    return layer_types(config, ("full", "sliding"), default)


dots1 = SparseDecoder(
    mixers=GroupedQuery(qk_norm=QkNorm.PER_HEAD),
    types=_dots1_types,
    experts=CORRECTED,
    placement=DenseFirst(default=0),
    expected={"topk_method": ("noaux_tc",), "moe_layer_freq": (1,), "use_sliding_window": (False,)},
)


def _ernie_head(model: Model, config: Config) -> Model:
    """The model with a bias in its head if `use_bias` is set."""
    return parts.with_head_bias(model) if config.flag("use_bias", default=False) else model


ERNIE_EXPERTS = Experts(
    experts=("moe_num_experts", "num_experts"),
    chosen=("moe_k", "num_experts_per_tok"),
    shared="moe_num_shared_experts",
    shared_bias="use_bias",
    correction_weight=True,
)
ernie4_5_moe = SparseDecoder(
    mixers=GroupedQuery(bias="use_bias"),
    experts=ERNIE_EXPERTS,
    dense=lambda config, dtype: ERNIE_EXPERTS.dense(config, dtype, config.count("intermediate_size")),
    placement=from_start_to_end,
    expected={"use_rmsnorm": (True,), "moe_use_aux_free": (True,), "moe_gate": ("topk",)},
    ignored=("moe_capacity", "moe_norm_min", "moe_aux_loss_lambda", "moe_use_hard_gate", "compression_ratio"),
    tied=True,
    finish=_ernie_head,
)

granitemoe = SparseDecoder(
    experts=Experts(width="intermediate_size", shared=""),
    finish=parts.with_multipliers,
    expected={"mlp_bias": (False,)},
    ignored=("attention_multiplier",),  # replaces 1 / sqrt(head_dim): no extra work
)

granitemoeshared = replace(
    granitemoe, experts=Experts(width="intermediate_size", shared_width="shared_intermediate_size")
)


def _granite_swa_types(config: Config) -> list[str]:
    """Full attention in every fourth layer, from the first; layers whose `layer_rope_theta` is 0 have no rope."""
    types = first_of_four(config)
    thetas = config.get("layer_rope_theta") or [1.0] * len(types)
    return [name if theta else f"{name}_nope" for name, theta in zip(types, thetas, strict=True)]


granitemoe_swa = replace(
    granitemoeshared, mixers=GroupedQuery(sinks=True), types=_granite_swa_types, defaults={"sliding_window": 128}
)


def _hunyuan_fields(config: Config) -> None:
    """One number of experts per layer becomes one number; a width of experts must be that of the MLP."""
    same_in_every_layer(config, "num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert")
    config.expect("moe_intermediate_size", config.get("intermediate_size"))
    if config.has("attention_head_dim"):
        config.defaults(head_dim=config.get("attention_head_dim"))


hunyuan_v1_moe = SparseDecoder(
    prepare=_hunyuan_fields,
    mixers=GroupedQuery(qk_norm=QkNorm.PER_HEAD),
    experts=Experts(width="intermediate_size", chosen=("moe_topk",), shared_width="intermediate_size"),
    expected={
        "num_shared_expert": (1,), "use_qk_norm": (True,), "use_cla": (False,), "use_mixed_mlp_moe": (True,),
        "mlp_bias": (False,), "norm_type": ("rms",), "moe_layer_num_skipped": (0,), "kv_lora_rank": (None,),
        "use_mla": (False,), "q_lora_rank": (None,), "add_classification_head": (False,), "use_rotary_pos_emb": (True,),
    },
    ignored=(
        "eod_token_id", "sep_token_id", "cla_share_factor", "class_num", "dense_list", "im_end_id", "im_newline_id",
        "im_start_id", "mask_init_id", "moe_drop_tokens", "moe_random_routing_dropped_token", "num_media_embeds",
        "org_vocab_size", "pad_id", "pool_type", "position_embedding_xdrope", "skip_cls_token", "text_end_id",
        "text_start_id", "video_end_id", "video_start_id", "group_limited_greedy", "qk_nope_head_dim",
        "qk_rope_head_dim", "v_head_dim", "attention_head_dim", "anyres_pooling_size", "vit_add_patchemb_bias",
        "vit_input_resolution", "vit_mapping_type", "vit_norm_type", "vit_patch", "vit_remove_prenorm", "vit_token",
        "vit_used_rms_norm",
    ),
)  # fmt: skip


aria_text = SparseDecoder(
    experts=Experts(
        width="intermediate_size", experts=("moe_num_experts",), chosen=("moe_topk",), shared="moe_num_shared_experts"
    ),
    defaults={"moe_num_experts": 8, "moe_topk": 2, "moe_num_shared_experts": 2},
    expected={"mlp_bias": (False,)},
    ignored=("moe_z_loss_coeff", "moe_aux_loss_coeff"),
)

flex_olmo = SparseDecoder(
    mixers=GroupedQuery(qk_norm=QkNorm.WHOLE),
    experts=Experts(width="intermediate_size", shared=""),
    norms=parts.post_norms,
)


hy_v3 = SparseDecoder(
    mixers=NORMED_128,
    experts=Experts(shared="num_shared_experts", correction_bias=True),
    placement=listed_or_first_dense,
    expected={"mlp_bias": (False,), "qk_norm": (True,)},
    ignored=("enable_moe_fp32_combine", "router_scaling_factor"),
)
