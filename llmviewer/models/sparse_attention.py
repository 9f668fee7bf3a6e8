"""Experts with grouped-query attention of several shapes: MiniMax-M3 (chosen blocks of keys), Laguna, JetMoE."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import QkNorm
from llmviewer.layers.attention_experts import AttentionExperts, BiasedExperts
from llmviewer.layers.compressed_attention import Indexer
from llmviewer.layers.decoder import Mixer
from llmviewer.layers.feed_forward import Mlp, Moe
from llmviewer.models import parts
from llmviewer.models.config import Config, group_count, hidden_size, layer_count, layer_types, rotary_dim, window
from llmviewer.models.decoder import Decoder
from llmviewer.models.experts import Experts, listed_or_everywhere, listed_or_first_dense
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation

#: Old name in `sparse_attention_config` -> name in transformers.
M3_INDEX_FIELDS = {
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}


def _m3_fields(config: Config) -> None:
    """The nested fields and 0/1 lists of the checkpoint under the names of transformers."""
    config.defaults(index_n_heads=4, index_head_dim=128, index_block_size=128, index_topk_blocks=16)
    if isinstance(config.get("moe_layer_freq"), list):
        config.defaults(mlp_layer_types=["sparse" if flag else "dense" for flag in config.numbers("moe_layer_freq")])
    if not config.has("sparse_attention_config"):
        return
    nested = config.section("sparse_attention_config")
    named = {new: nested.get(old) for old, new in M3_INDEX_FIELDS.items() if nested.has(old)}
    config.fields = {**config.fields, **named}
    flags = nested.numbers("sparse_attention_freq")
    if flags:
        config.defaults(layer_types=["minimax_m3_sparse" if flag else "full_attention" for flag in flags])


def _m3_types(config: Config) -> list[str]:
    """`sparse` for layers in which an indexer chooses blocks of keys, else `full`."""
    depth = layer_count(config)
    if not config.has("layer_types"):
        return ["full"] * depth
    words = config.words("layer_types", ("full_attention", "minimax_m3_sparse"), depth)
    return ["sparse" if word == "minimax_m3_sparse" else "full" for word in words]


def _m3_attention(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """Full attention, and the same with an indexer whose heads choose blocks for one group of query heads each.

    The chosen blocks include the query's own; their tokens after the query count as attended, an overestimate of half
    a block.
    """
    full = Decoder(qk_norm=QkNorm.PER_HEAD, head_dim=128, rotated="rotary_dim").attention(config, dtype)
    dim = config.count("index_head_dim")
    indexer = Indexer(
        hidden=full.hidden,
        q_width=full.hidden,
        heads=config.count("index_n_heads"),
        dim=dim,
        rope_dim=min(full.rotary_dim, dim),
        dtype=dtype,
        weighted=False,
        q_norm=True,
    )
    selected = config.count("index_topk_blocks") * config.count("index_block_size")
    config.ignore("index_local_blocks")  # blocks that are always among the chosen
    return {"full": full, "sparse": replace(full, selected=selected, indexer=indexer)}


def _clamped(config: Config, dtype: Dtype, width: int) -> Mlp:
    """An MLP with fused gate and up and a SwiGLU with clamped inputs."""
    return replace(parts.mlp(config, dtype, width), fused=True, activation=activation("clamped_swiglu"))


def _m3_experts(config: Config, dtype: Dtype) -> Moe:
    plain = Experts(width="intermediate_size", shared="", correction_bias=True)(config, dtype)
    expert = replace(plain.expert, activation=activation("clamped_swiglu"))
    return replace(plain, expert=expert, shared=_clamped(config, dtype, config.count("shared_intermediate_size")))


minimax_m3 = Decoder(
    prepare=_m3_fields,
    mixers=_m3_attention,
    types=_m3_types,
    experts=_m3_experts,
    placement=listed_or_everywhere,
    dense=lambda config, dtype: _clamped(config, dtype, config.count("dense_intermediate_size")),
    constants={"use_qk_norm": True, "qk_norm_type": "per_head", "use_routing_bias": True},
    ignored="swiglu_alpha swiglu_limit dense_intermediate_size shared_intermediate_size index_topk_blocks "
    "index_block_size index_head_dim index_n_heads index_local_blocks n_shared_experts",
)  # fmt: skip


def _laguna_kinds(config: Config) -> list[str]:
    """The type of every layer and its number of query heads: `full 48`."""
    depth = layer_count(config)
    types = layer_types(config, ("full", "sliding"), ["full"] * depth)
    heads = config.numbers("num_attention_heads_per_layer", [config.count("num_attention_heads")] * depth)
    if len(heads) != depth:
        raise UserError(f"{config.where}: field 'num_attention_heads_per_layer' must list {depth} layers")
    return [f"{name} {count}" for name, count in zip(types, heads, strict=True)]


def _laguna_attention(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """Attention with a softplus gate, one factor per head or per element, for each type and number of heads."""
    config.expect("gating", True, "per-head", "per-element")
    per_head = config.get("gating", True) in (True, "per-head")
    plain = Decoder(qk_norm=QkNorm.PER_HEAD, head_dim=128, gate=True).attention(config, dtype)
    plain = replace(plain, gate_width=1 if per_head else 0, gate_activation="softplus")
    near = replace(plain, window=window(config))
    mixers: dict[str, Mixer] = {}
    for kind in dict.fromkeys(_laguna_kinds(config)):
        name, _, heads = kind.partition(" ")
        kv_heads = group_count(config, "num_key_value_heads", plain.kv_heads, heads=int(heads))
        mixers[kind] = replace(near if name == "sliding" else plain, heads=int(heads), kv_heads=kv_heads)
    return mixers


def _plain_names(model: Model, config: Config) -> Model:
    """The model with block names without blanks."""
    return replace(model, layers=tuple(replace(layer, name=layer.name.replace(" ", "_")) for layer in model.layers))


laguna = Decoder(
    mixers=_laguna_attention,
    types=_laguna_kinds,
    experts=Experts(shared_width="shared_expert_intermediate_size", correction_weight=True),
    placement=listed_or_first_dense,
    defaults={"sliding_window": 512},
    constants={"moe_apply_router_weight_on_input": False, "use_bidirectional_attention": False},
    ignored="moe_routed_scaling_factor moe_router_logit_softcapping",
    finish=_plain_names,
)


#: Name of the first checkpoint -> name in transformers.
JETMOE_NAMES = {
    "moe_num_experts": "num_local_experts",
    "moe_top_k": "num_experts_per_tok",
    "ffn_hidden_size": "intermediate_size",
}


def _jetmoe_fields(config: Config) -> None:
    """Fields of the first checkpoint under their names in transformers, with which they must agree."""
    for old, new in JETMOE_NAMES.items():
        if config.has(old):
            config.defaults(**{new: config.get(old)})
            config.expect(old, config.get(new))


def _jetmoe_attention(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """Experts of queries and outputs, as many as experts of the MLP."""
    experts, dim = config.count("num_local_experts"), config.count("kv_channels", 128)
    chosen, kv_heads = config.count("num_experts_per_tok", maximum=experts), config.count("num_key_value_heads")
    config.expect("num_attention_heads", chosen * kv_heads)
    config.expect("head_dim", dim)
    mixer = AttentionExperts(
        hidden=hidden_size(config),
        experts=experts,
        chosen=chosen,
        kv_heads=kv_heads,
        head_dim=dim,
        rotary_dim=rotary_dim(config, dim),
        dtype=dtype,
    )
    return {"full": mixer}


def _jetmoe_experts(config: Config, dtype: Dtype) -> BiasedExperts:
    return BiasedExperts(sparse=Experts(width="intermediate_size", shared="")(config, dtype))


jetmoe = Decoder(
    prepare=_jetmoe_fields,
    mixers=_jetmoe_attention,
    experts=_jetmoe_experts,
    defaults={"num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 16},
    constants={"glu": True, "bias": True},
    ignored="aux_loss_coef n_head length rotary_percent",
    tied=True,
)
