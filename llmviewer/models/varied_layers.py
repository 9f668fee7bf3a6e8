"""Dense architectures whose layers differ: in windows and rope, or in size (OpenELM, DeciLM, `nemotron-nas`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention, Projections, QkNorm
from llmviewer.layers.decoder import DecoderLayer, Norms
from llmviewer.models import parts
from llmviewer.models.class_defaults import class_defaults
from llmviewer.models.config import Config, head_count, hidden_size, layer_count, sliding_or_full
from llmviewer.models.decoder import AFTER, Decoder
from llmviewer.models.layer_patterns import all_sliding, exaone_types, first_of_four, layers_with_base, local_layers
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import rms_norm

#: Olmo3ForCausalLM: OLMo 2 with a window in three of four layers.
OLMO3 = Decoder(
    defaults=class_defaults("olmo3") | {"sliding_window": 4096},
    places=AFTER,
    qk_norm=QkNorm.WHOLE,
    types=partial(sliding_or_full, period=4),
)
#: Exaone4ForCausalLM: norms after each part, QK-norm, and no rope in full layers beside layers with a window.
EXAONE4 = Decoder(
    defaults=class_defaults("exaone4") | {"sliding_window": 4096},
    places=AFTER,
    bias=False,
    qk_norm=QkNorm.PER_HEAD,
    types=exaone_types,
    rope=local_layers,
)
#: MinistralForCausalLM: Mistral with a window in the layers that the config lists.
MINISTRAL = Decoder(defaults=class_defaults("ministral") | {"sliding_window": 4096}, bias=False, types=all_sliding)
#: CwmForCausalLM: a window in three of four layers.
CWM = Decoder(
    defaults=class_defaults("cwm") | {"head_dim": 128, "sliding_window": 8192},
    qkv_bias=False,
    out_bias=False,
    types=first_of_four,
)
#: VaultGemmaForCausalLM: Gemma 2 without norms after its parts.
VAULTGEMMA = Decoder(
    defaults={
        **class_defaults("vaultgemma"),
        **{"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096},
        **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    },
    types=partial(sliding_or_full, period=2),
    mlp_bias=False,
    scaled=True,
    tied=True,
    caps=True,
)
#: GraniteSWAForCausalLM: Granite with sinks and a window in three of four layers; a rope base of 0 means no rope.
GRANITE_SWA = Decoder(
    defaults=class_defaults("granite_swa") | {"sliding_window": 128},
    ignored="attention_multiplier",
    sinks=True,
    types=first_of_four,
    rope=layers_with_base,
    tied=True,
    factors=True,
)


#: Query heads, key-value heads and width of the MLP of a layer; 0 = it has no attention, or no MLP.
Sizes: TypeAlias = tuple[int, int, int]
#: MLP widths of DeciLM are rounded up to a multiple of this.
WIDTH_STEP = 256


def parse_openelm(config: Config, dtype: Dtype) -> Model:
    """OpenELMForCausalLM: heads and MLP widths that grow with depth, QK-norm per head, tied head.

    Source: https://huggingface.co/apple/OpenELM-270M, configuration_openelm.py, modeling_openelm.py.
    """
    for name, value in {
        "normalization_layer_name": "rms_norm",
        "ffn_with_glu": True,
        "activation_fn_name": "swish",
    }.items():
        config.expect(name, value)
    config.ignore("num_hidden_layers", "num_gqa_groups", "qkv_multipliers", "rope_freq_constant", "rope_max_length")
    depth = config.count("num_transformer_layers")
    heads, kv_heads = (_numbers(config, name, depth) for name in ("num_query_heads", "num_kv_heads"))
    hidden, step = config.count("model_dim"), config.count("ffn_dim_divisor", 256)
    widths = [_rounded(factor * hidden, step) for factor in _numbers(config, "ffn_multipliers", depth)]
    config.defaults(
        hidden_size=hidden,
        num_hidden_layers=depth,
        num_attention_heads=int(max(heads)),
        hidden_act="silu",
        max_position_embeddings=config.count("max_context_length", 2048),
        tie_word_embeddings=config.flag("share_input_output_layers", default=True),
    )
    normed = config.flag("normalize_qk_projections", default=True)
    plain = parts.attention(config, dtype, Projections(fused=True))
    mixer = replace(plain, qk_norm=QkNorm.PER_HEAD if normed else QkNorm.NONE)
    sizes = [(int(q), int(kv), width) for q, kv, width in zip(heads, kv_heads, widths, strict=True)]
    return _model(config, dtype, mixer, sizes, fused=True)


def parse_deci(config: Config, dtype: Dtype) -> Model:
    """DeciLMForCausalLM: Llama with the layers that `block_configs` or `num_key_value_heads_per_layer` lists.

    Source: https://huggingface.co/nvidia/Llama-3_1-Nemotron-51B-Instruct, modeling_decilm.py, block_config.py;
    https://huggingface.co/Deci/DeciLM-7B.
    """
    heads = head_count(config)
    config.ignore("max_window_layers", "num_key_value_heads")
    if config.has("block_configs"):
        blocks = config.get("block_configs")
        if not isinstance(blocks, list) or len(blocks) != layer_count(config):
            raise UserError(f"{config.where}: field 'block_configs' must list {layer_count(config)} layers")
        config.ignore("intermediate_size")
        sizes = [_searched(config, block, heads, hidden_size(config)) for block in blocks]
    else:
        groups = _numbers(config, "num_key_value_heads_per_layer", layer_count(config))
        sizes = [(heads, int(kv), config.count("intermediate_size")) for kv in groups]
    if any(heads % kv for _, kv, _ in sizes if kv):
        raise UserError(f"{config.where}: {heads} heads are not divisible by the key-value heads of every layer")
    config.override(num_key_value_heads=max(kv for _, kv, _ in sizes) or heads)
    return _model(config, dtype, parts.attention(config, dtype, parts.projections(config)), sizes)


def _searched(config: Config, block: Any, heads: int, hidden: int) -> Sizes:
    """The sizes of a layer of `block_configs`; a linear layer in place of a part, or a window, is refused."""
    try:
        attention, ffn = dict(block["attention"]), dict(block["ffn"])
        for part, name in (
            (attention, "replace_with_linear"),
            (ffn, "replace_with_linear"),
            (attention, "window_length"),
        ):
            if part.get(name):
                raise UserError(f"{config.where}: field 'block_configs': {name} is set, which is not supported")
        groups = 0 if attention.get("no_op") else heads // int(attention["n_heads_in_group"])
        width = 0 if ffn.get("no_op") else -(-int(2 * float(ffn["ffn_mult"]) * hidden / 3) // WIDTH_STEP) * WIDTH_STEP
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise UserError(
            f"{config.where}: field 'block_configs' must give n_heads_in_group and ffn_mult, or no_op, for every layer"
        ) from None
    return heads if groups else 0, groups, width


def _rounded(width: float, step: int) -> int:
    """The nearest multiple of `step`, the next one if that would be less than 90 % of `width`."""
    near = max(step, int(width + step / 2) // step * step)
    return near + step if near < 0.9 * width else near


def _numbers(config: Config, name: str, depth: int) -> Sequence[float]:
    """The positive numbers of a field, one for every layer."""
    value = config.get(name)
    fine = (
        isinstance(value, list)
        and len(value) == depth
        and all(isinstance(one, (int, float)) and not isinstance(one, bool) and 0 < one <= 10**6 for one in value)
    )
    if not fine:
        raise UserError(f"{config.where}: field '{name}' must list a positive number for each of {depth} layers")
    return list(value)


def _model(config: Config, dtype: Dtype, mixer: Attention, sizes: Sequence[Sizes], *, fused: bool = False) -> Model:
    """The model whose layers have these sizes; layers of the same sizes are one block."""
    norms, bias = parts.pre_norms(config, dtype), config.flag("mlp_bias", default=False)

    def layer(size: Sizes, repeats: int) -> DecoderLayer:
        heads, kv_heads, width = size
        return DecoderLayer(
            name=f"layer_{heads}_{kv_heads}_{width}",
            repeats=repeats,
            norms=Norms(attn=norms.attn if heads else None, mlp=norms.mlp if width else None),
            mixer=replace(mixer, heads=heads, kv_heads=kv_heads) if heads else None,
            feed_forward=replace(parts.mlp(config, dtype, width), fused=fused, bias=bias) if width else None,
        )

    layers = parts.group_layers(sizes, layer)
    return parts.model(config, dtype, layers, rms_norm("final_norm", hidden_size(config), dtype))
