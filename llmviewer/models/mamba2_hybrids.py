"""Hybrids of Mamba-2 and attention with `mamba_*` fields: Bamba, Granite 4 and Falcon-H1."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention
from llmviewer.layers.decoder import FeedForward, Mixer
from llmviewer.layers.feed_forward import Mlp
from llmviewer.layers.recurrent import Mamba2, ParallelMixers
from llmviewer.models import parts
from llmviewer.models.config import Config, group_count, hidden_size, layer_count
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import rms_norm

#: Entries of `layer_types`, in transformers 5 and before.
WORDS = {"linear_attention": "mamba", "full_attention": "attention", "mamba": "mamba", "attention": "attention"}
#: Factors of Falcon-H1 on activations (muP), which engines fold into the weights beside them.
FOLDED_FACTORS = (
    *(f"attention_{side}_multiplier" for side in ("in", "out")),
    *(f"ssm_{side}_multiplier" for side in ("in", "out")),
    "ssm_multipliers",
    "mlp_multipliers",
    "key_multiplier",
)


def parse_bamba(config: Config, dtype: Dtype) -> Model:
    """BambaForCausalLM: Mamba-2, and attention with half of each head rotated in the layers that are listed."""
    config.defaults(partial_rotary_factor=0.5, num_key_value_heads=8)
    config.ignore("attn_rotary_emb")  # half of each head, as the class rotates in any case
    config.ignore("z_loss_coefficient")  # training only
    listed = config.numbers("attn_layer_indices")
    words = ["attention" if layer in listed else "mamba" for layer in range(layer_count(config))]
    return _hybrid(config, dtype, words, _attention(config, dtype), parts.gated_mlp(config, dtype))


def parse_granitemoehybrid(config: Config, dtype: Dtype) -> Model:
    """GraniteMoeHybridForCausalLM (Granite 4): a shared expert in each layer, and routed ones beside it if any."""
    config.ignore("attention_multiplier")  # replaces 1 / sqrt(head_dim): no extra work
    config.ignore("init_method")  # training only
    config.expect("position_embedding_type", "rope", "nope")
    config.expect("normalization_function", "rmsnorm")
    config.defaults(mamba_n_heads=128, num_local_experts=8, num_experts_per_tok=2)
    attention = _attention(config, dtype)
    if config.get("position_embedding_type") != "rope":
        attention = replace(attention, rotary_dim=0)
    plain = _hybrid(config, dtype, _words(config), attention, _granite_feed_forward(config, dtype))
    return parts.with_multipliers(plain, config)


def parse_falcon_h1(config: Config, dtype: Dtype) -> Model:
    """FalconH1ForCausalLM: attention and Mamba-2 side by side in each layer, `mamba_d_ssm` channels wide."""
    config.ignore(*FOLDED_FACTORS, "mamba_use_mlp", "attn_layer_indices")
    config.ignore("mamba_norm_before_gate")  # the same work in either order
    config.defaults(num_key_value_heads=8, mamba_d_ssm=1024)
    inner = config.count("mamba_d_ssm") if config.has("mamba_d_ssm") else _expanded(config)
    mamba = replace(
        _mamba(config, dtype, inner),
        out_bias=config.flag("projectors_bias", default=False),
        normed=config.flag("mamba_rms_norm", default=False),
    )
    mixer = ParallelMixers(first=mamba, second=_attention(config, dtype))
    _ignore_kernels(config)
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype), mixer, parts.gated_mlp(config, dtype))
    built = parts.model(config, dtype, layers, rms_norm("final_norm", hidden_size(config), dtype))
    return replace(
        built,
        embedding=replace(built.embedding, scaled=bool(parts.factor_flops(config, "embedding_multiplier"))),
        head=replace(built.head, logit_flops=parts.factor_flops(config, "lm_head_multiplier")),
    )


def _hybrid(config: Config, dtype: Dtype, words: list[str], attention: Attention, feed_forward: FeedForward) -> Model:
    """A model with one of the two mixers in each layer, as `words` lists, and the same feed-forward part in all."""
    mixers: dict[str, Mixer] = {"attention": attention, "mamba": _mamba(config, dtype, _expanded(config))}
    _ignore_kernels(config)
    kinds = [(word, "ffn") for word in words]
    layers = parts.layers_by_kind(kinds, parts.pre_norms(config, dtype), mixers, {"ffn": feed_forward})
    return parts.model(config, dtype, layers, rms_norm("final_norm", hidden_size(config), dtype))


def _ignore_kernels(config: Config) -> None:
    config.ignore("mamba_chunk_size", "use_mamba_kernels", "num_logits_to_keep")  # part of the chunked scan
    config.ignore("mamba_expand", "mamba_d_head")  # checked where the mixer is built


def _words(config: Config) -> list[str]:
    """Mixer of every layer from `layer_types` or, as older files call it, `layers_block_type`."""
    name = config.first_present("layer_types", "layers_block_type")
    if not config.has(name):
        return ["mamba"] * layer_count(config)
    return [WORDS[word] for word in config.words(name, WORDS, layer_count(config))]


def _attention(config: Config, dtype: Dtype) -> Attention:
    return parts.attention(config, dtype, parts.projections(config))


def _granite_feed_forward(config: Config, dtype: Dtype) -> FeedForward:
    shared: Mlp = replace(parts.mlp(config, dtype, config.count("shared_intermediate_size", 1024)), fused=True)
    config.ignore("intermediate_size", "num_experts_per_tok")  # unused if there are no experts
    if not config.count("num_local_experts", minimum=0):
        return shared
    return replace(parts.moe(config, dtype, config.count("intermediate_size")), shared=shared)


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
