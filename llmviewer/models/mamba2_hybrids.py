"""Hybrids of Mamba-2 and attention with `mamba_*` fields: Bamba, Granite 4 and Falcon-H1."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.decoder import FeedForward, Mixer
from llmviewer.layers.feed_forward import Mlp
from llmviewer.layers.recurrent import Mamba2, ParallelMixers
from llmviewer.models import parts
from llmviewer.models.config import Config, group_count, hidden_size, layer_count
from llmviewer.models.decoder import Decoder
from llmviewer.models.model import Model

#: Entries of `layer_types`, in transformers 5 and before.
WORDS = {"linear_attention": "mamba", "full_attention": "attention", "mamba": "mamba", "attention": "attention"}
#: Factors of Falcon-H1 on activations (muP), which engines fold into the weights beside them.
FOLDED_FACTORS = (
    "attention_in_multiplier attention_out_multiplier ssm_in_multiplier ssm_out_multiplier ssm_multipliers "
    "mlp_multipliers key_multiplier"
)
#: Fields of the chunked scan, and those that are checked where the mixer is built.
UNUSED = "mamba_chunk_size use_mamba_kernels num_logits_to_keep mamba_expand mamba_d_head"
_HYBRID = Decoder(constants={"sliding_window": None})


def _mixers(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """One of the two mixers in each layer."""
    attention = _HYBRID.attention(config, dtype)
    return {"attention": attention, "mamba": _mamba(config, dtype, _expanded(config))}


def _bamba_words(config: Config) -> list[str]:
    listed = config.numbers("attn_layer_indices")
    return ["attention" if layer in listed else "mamba" for layer in range(layer_count(config))]


#: BambaForCausalLM: Mamba-2, and attention with half of each head rotated in the layers that are listed.
BAMBA = replace(
    _HYBRID,
    defaults={"partial_rotary_factor": 0.5, "num_key_value_heads": 8},
    # half of each head is rotated in any case; the other field is for training only
    ignored=f"{UNUSED} attn_rotary_emb z_loss_coefficient",
    mixers=_mixers,
    types=_bamba_words,
)


def _words(config: Config) -> list[str]:
    """Mixer of every layer from `layer_types` or, as older files call it, `layers_block_type`."""
    name = config.first_present("layer_types", "layers_block_type")
    if not config.has(name):
        return ["mamba"] * layer_count(config)
    return [WORDS[word] for word in config.words(name, WORDS, layer_count(config))]


def _granite_mixers(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """The mixers, with rope only if `position_embedding_type` asks for it."""
    mixers = _mixers(config, dtype)
    if config.get("position_embedding_type") != "rope":
        mixers["attention"] = replace(_HYBRID.attention(config, dtype), rotary_dim=0)
    return mixers


def _granite_feed_forward(config: Config, dtype: Dtype) -> FeedForward:
    shared: Mlp = replace(parts.mlp(config, dtype, config.count("shared_intermediate_size", 1024)), fused=True)
    if not config.count("num_local_experts", minimum=0):
        return shared
    return replace(parts.wide_moe(config, dtype), shared=shared)


#: GraniteMoeHybridForCausalLM (Granite 4): a shared expert in each layer, and routed ones beside it if any.
GRANITEMOEHYBRID = replace(
    _HYBRID,
    defaults={"mamba_n_heads": 128, "num_local_experts": 8, "num_experts_per_tok": 2},
    constants={
        **_HYBRID.constants,
        **{"position_embedding_type": ("rope", "nope"), "normalization_function": "rmsnorm"},
    },
    # the multiplier replaces 1 / sqrt(head_dim), which is no extra work; the others are for training or for experts
    ignored=f"{UNUSED} attention_multiplier init_method intermediate_size num_experts_per_tok",
    mixers=_granite_mixers,
    types=_words,
    dense=_granite_feed_forward,
    factors=True,
)


def _side_by_side(config: Config, dtype: Dtype) -> ParallelMixers:
    """Attention and Mamba-2, `mamba_d_ssm` channels wide."""
    inner = config.count("mamba_d_ssm") if config.has("mamba_d_ssm") else _expanded(config)
    mamba = replace(
        _mamba(config, dtype, inner),
        out_bias=config.flag("projectors_bias", default=False),
        normed=config.flag("mamba_rms_norm", default=False),
    )
    return ParallelMixers(first=mamba, second=_HYBRID.attention(config, dtype))


def _falcon_factors(model: Model, config: Config) -> Model:
    """The model with factors on embeddings and logits."""
    return replace(
        model,
        embedding=replace(model.embedding, scaled=bool(parts.factor_flops(config, "embedding_multiplier"))),
        head=replace(model.head, logit_flops=parts.factor_flops(config, "lm_head_multiplier")),
    )


#: FalconH1ForCausalLM: attention and Mamba-2 side by side in each layer; its norm and gate are in either order.
FALCON_H1 = Decoder(
    defaults={"num_key_value_heads": 8, "mamba_d_ssm": 1024},
    ignored=f"{UNUSED} {FOLDED_FACTORS} mamba_use_mlp attn_layer_indices mamba_norm_before_gate",
    mixers=_side_by_side,
    finish=_falcon_factors,
)


def _expanded(config: Config) -> int:
    return config.count("mamba_expand", 2) * hidden_size(config)


def _mamba(config: Config, dtype: Dtype, inner: int) -> Mamba2:
    """Mamba-2 of `inner` channels; `mamba_d_head` may be `auto`."""
    heads = config.count("mamba_n_heads", 128)
    head_dim = inner // heads if config.get("mamba_d_head", "auto") == "auto" else config.count("mamba_d_head")
    if heads * head_dim != inner:
        raise UserError(f"{config.where}: mamba_n_heads x mamba_d_head is {heads * head_dim}, expected {inner}")
    bias = config.flag("mamba_proj_bias", default=False)
    return Mamba2(
        hidden=hidden_size(config),
        heads=heads,
        head_dim=head_dim,
        groups=group_count(config, "mamba_n_groups", 1, heads=heads),
        state=config.count("mamba_d_state", 256),
        kernel=config.count("mamba_d_conv", 4),
        dtype=dtype,
        bias=bias,
        out_bias=bias,
        conv_bias=config.flag("mamba_conv_bias", default=True),
    )
