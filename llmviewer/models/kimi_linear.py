"""Kimi-Linear (arXiv 2510.26692) and Ling 3: Kimi delta attention in most layers, latent attention in the others."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.decoder import Mixer
from llmviewer.layers.linear_attention import KimiDelta
from llmviewer.layers.mla import Mla
from llmviewer.models import parts
from llmviewer.models.config import Config, head_count, hidden_size, layer_count, layer_types
from llmviewer.models.decoder import Decoder
from llmviewer.models.deepseek import latent_attention
from llmviewer.models.experts import DenseFirst
from llmviewer.models.layer_patterns import FullEvery

#: Field of transformers -> its name in the section `linear_attn_config` of the published files.
NESTED = {
    "linear_head_dim": "head_dim",
    "linear_num_heads": "num_heads",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}
#: Fields that say which experts are chosen, not how many.
UNUSED = "moe_renormalize num_expert_group use_grouped_topk"
#: Class defaults of Ling 3.
DEFAULTS_OF_LING = {
    **{"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"num_local_experts": 512, "moe_intermediate_size": 768},
}


def delta(config: Config, dtype: Dtype) -> KimiDelta:
    """Kimi delta attention from the fields `linear_*`."""
    return KimiDelta(
        hidden=hidden_size(config),
        heads=config.count("linear_num_heads", 32),
        head_dim=config.count("linear_head_dim", 128),
        kernel=config.count("linear_conv_kernel_dim", 4),
        dtype=dtype,
    )


def _rename(config: Config) -> None:
    """Set the names of transformers from those of the published files."""
    config.defaults(num_experts_per_tok=config.get("num_experts_per_token"), q_lora_rank=None)
    config.defaults(n_shared_experts=config.get("num_shared_experts", 1))
    if config.has("linear_attn_config"):
        section = config.section("linear_attn_config")
        section.ignore("full_attn_layers", "kda_layers")  # read where layer_types does not say
        config.fields = {**config.fields, **{name: section.get(nested) for name, nested in NESTED.items()}}


def _latent(config: Config, dtype: Dtype) -> Mla:
    config.ignore("head_dim")  # hidden_size / heads in published files, which the class overwrites
    plain = Config({name: value for name, value in config.fields.items() if name != "head_dim"}, config.where)
    attention = latent_attention(plain, dtype)
    config.ignore(*plain.read)
    return attention


def _mixer_words(config: Config) -> list[str]:
    """`full` or `linear` for every layer; the published lists count from one."""
    depth = layer_count(config)
    default = ["full" if layer and layer % 4 == 0 else "linear" for layer in range(depth)]
    if config.has("layer_types") or not config.has("linear_attn_config"):
        return layer_types(config, ("linear", "full"), default)
    section = config.section("linear_attn_config")
    if not (section.has("full_attn_layers") and section.has("kda_layers")):
        return default
    full, linear = section.numbers("full_attn_layers"), section.numbers("kda_layers")
    if sorted(full + linear) != list(range(1, depth + 1)):
        raise UserError(f"{section.where}: full_attn_layers and kda_layers must list each of {depth} layers once")
    return ["full" if layer + 1 in full else "linear" for layer in range(depth)]


def _kimi_mixers(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    return {"full": replace(_latent(config, dtype), rotates=False), "linear": delta(config, dtype)}


#: KimiLinearForCausalLM: one dense layer, then experts chosen by sigmoid scores plus a stored bias.
KIMI_LINEAR = Decoder(
    constants={"mla_use_nope": True, "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid"},
    ignored=UNUSED,
    prepare=_rename,
    mixers=_kimi_mixers,
    types=_mixer_words,
    mlp_bias=False,
    experts=parts.corrected_moe,
    placement=DenseFirst(default=1),
)


def _ling_fields(config: Config) -> None:
    config.defaults(num_experts_per_token=8)
    _rename(config)
    config.defaults(
        linear_head_dim=config.get("head_dim", 128),  # that of the other layers is overwritten by the class
        linear_num_heads=head_count(config),
        linear_conv_kernel_dim=config.count("short_conv_kernel_size", 4),
    )


def _ling_mixers(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    linear = replace(delta(config, dtype), low_rank=False)
    return {"full": replace(_latent(config, dtype), gate_width=1), "linear": linear}


#: BailingHybridForCausalLM (Ling 3): latent attention with a gate per head ends every group of layers.
BAILING_HYBRID = replace(
    KIMI_LINEAR,
    defaults=DEFAULTS_OF_LING,
    constants={},
    ignored=f"{UNUSED} kda_safe_gate kda_lower_bound",  # the range of the decay
    prepare=_ling_fields,
    mixers=_ling_mixers,
    types=FullEvery("layer_group_size", 6, other="linear"),
    placement=DenseFirst(default=2),
)
