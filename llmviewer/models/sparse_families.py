"""Decoders with grouped-query attention and experts, one entry each: fields, norms, windows of layers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import QkNorm
from llmviewer.layers.decoder import Norms, Residual
from llmviewer.models import parts
from llmviewer.models.config import Config, head_count, hidden_size, layer_count, layer_types
from llmviewer.models.layer_patterns import FullEvery, first_of_four
from llmviewer.models.model import Model
from llmviewer.models.qwen import sparse_layers
from llmviewer.models.sparse_decoder import (
    NORMED_128,
    DenseFirst,
    Experts,
    GroupedQuery,
    SparseDecoder,
    from_start_to_end,
    listed_or_everywhere,
    listed_or_first_dense,
    same_in_every_layer,
)
from llmviewer.ops.elementwise import Norm, layer_norm, rms_norm

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


def _exaone_types(config: Config) -> list[str]:
    """The layers as `layer_types` lists them, or by `sliding_window_pattern`: a number, or letters such as `LLLG`."""
    pattern = config.get("sliding_window_pattern", 4)
    if isinstance(pattern, str):
        depth = layer_count(config)
        words = ["full" if pattern[at % len(pattern)] == "G" else "sliding" for at in range(depth)]
        return layer_types(config, ("sliding", "full"), [*words[:-1], "full"])
    return FullEvery("sliding_window_pattern", 4)(config)


exaone_moe = SparseDecoder(
    mixers=GroupedQuery(qk_norm=QkNorm.PER_HEAD, unrotated=("full",)),
    types=_exaone_types,
    experts=Experts(shared="num_shared_experts", correction_bias=True),
    placement=DenseFirst(default=1),
    ignored=("is_moe_layer", "rope_interleave"),
)


def _flint_types(config: Config) -> list[str]:
    """Full attention in the first two layers, the last, and every fourth from the second."""
    last = layer_count(config) - 1
    full = [at < 2 or at % 4 == 1 or at == last for at in range(last + 1)]
    return layer_types(config, ("sliding", "full"), ["full" if yes else "sliding" for yes in full])


flint = SparseDecoder(
    mixers=replace(NORMED_128, sinks=True, unrotated=("full",)),
    types=_flint_types,
    experts=Experts(shared_width="shared_expert_intermediate_size"),
    placement=sparse_layers,
    defaults={"sliding_window": 513, "mlp_only_layers": [0, 1]},
)

kolibri1 = SparseDecoder(
    mixers=replace(NORMED_128, unrotated=("full",)),
    types=FullEvery("", 5),
    experts=Experts(shared_width="shared_expert_intermediate_size", correction_bias=True),
    norms=parts.sandwich_norms,
    defaults={"sliding_window": 513},
)

mellum = SparseDecoder(
    mixers=NORMED_128,
    types=lambda config: layer_types(config, ("sliding", "full"), ["full"] * layer_count(config)),
    experts=Experts(shared=""),
    placement=listed_or_everywhere,
    ignored=("mtp_layer_types", "mtp_mlp_layer_types"),
)


def _afmoe_scale(model: Model, config: Config) -> Model:
    """The model with scaled embeddings if `mup_enabled` is set."""
    scaled = config.flag("mup_enabled", default=False)
    return replace(model, embedding=replace(model.embedding, scaled=scaled))


afmoe = SparseDecoder(
    mixers=replace(NORMED_128, gate=True, unrotated=("full",)),
    types=FullEvery("global_attn_every_n_layers", 4),
    experts=Experts(shared="num_shared_experts", correction_weight=True),
    placement=DenseFirst("num_dense_layers", 1),
    norms=parts.sandwich_norms,
    defaults={"sliding_window": 1024},
    expected={"score_func": ("sigmoid",)},
    ignored=(
        "global_attn_every_n_layers", "route_scale", "route_norm", "load_balance_coeff", "num_expert_groups",
        "num_limited_groups", "use_grouped_mm",
    ),
    finish=_afmoe_scale,
)  # fmt: skip


def _cohere_norm(config: Config, name: str, dtype: Dtype) -> Norm:
    """RMSNorm if `rms_norm_eps` is set, else LayerNorm without bias."""
    kind = rms_norm if config.has("rms_norm_eps") else partial(layer_norm, bias=False)
    return kind(name, hidden_size(config), dtype)


def _cohere_types(config: Config) -> list[str]:
    """Every `sliding_window_pattern`-th layer after the dense ones is full and has no rope; dense ones have it."""
    dense = config.count("first_k_dense_replace", 0, minimum=0)
    first, period = (config.count(f"{name}sliding_window_pattern", at) for name, at in (("prefix_dense_", 1), ("", 4)))
    rule = ["sliding" if (at + 1) % first else "full" for at in range(dense)]
    rule += ["sliding" if (at + 1) % period else "full" for at in range(layer_count(config) - dense)]
    types, words = layer_types(config, ("sliding", "full"), rule), DenseFirst(default=0)(config)
    rotated = [word == "dense" and first == 1 for word in words]
    return [name if name == "sliding" or turns else "full_nope" for name, turns in zip(types, rotated, strict=True)]


def _cohere_finish(model: Model, config: Config) -> Model:
    """The model with attention and experts in parallel, and scaled logits."""
    layers = tuple(replace(layer, residual=Residual.PARALLEL) for layer in model.layers)
    scaled = float(config.number("logit_scale", 0.0625) != 1.0)
    return replace(model, layers=layers, head=replace(model.head, logit_flops=scaled))


cohere2_moe = SparseDecoder(
    mixers=GroupedQuery(head_dim=128),
    types=_cohere_types,
    experts=Experts(width="intermediate_size", shared="num_shared_experts"),
    placement=DenseFirst(default=0),
    dense=lambda config, dtype: parts.mlp(
        config, dtype, config.count(config.first_present("prefix_dense_intermediate_size", "intermediate_size"))
    ),
    norms=lambda config, dtype: Norms(attn=_cohere_norm(config, "attn_norm", dtype)),
    final_norm=lambda config, dtype: _cohere_norm(config, "final_norm", dtype),
    defaults={"sliding_window": 4096},
    expected={"expert_selection_fn": ("softmax", "sigmoid")},
    ignored=("shared_expert_combination_strategy", "prefix_dense_intermediate_size"),
    tied=True,
    finish=_cohere_finish,
)


def _every_sixth_and_last(config: Config) -> list[str]:
    """Full attention in every sixth layer and in the last."""
    last = layer_count(config) - 1
    default = ["full" if at % 6 == 5 or at == last else "sliding" for at in range(last + 1)]
    return layer_types(config, ("sliding", "full"), default)


def _beam_finish(model: Model, config: Config) -> Model:
    """The model with a bias per head of the attention gates, and capped logits."""
    capped = parts.with_logit_cap(model, capped=config.has("final_logit_softcapping"))
    return parts.with_stored(capped, gate_bias=layer_count(config) * head_count(config))


beam = SparseDecoder(
    mixers=replace(NORMED_128, gate=True, unrotated=("full",)),
    types=_every_sixth_and_last,
    experts=Experts(shared="", correction_bias=True),
    placement=DenseFirst(default=3),
    norms=parts.sandwich_norms,
    defaults={
        **{"sliding_window": 512, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2560},
        "final_logit_softcapping": 30.0,
    },
    finish=_beam_finish,
)
