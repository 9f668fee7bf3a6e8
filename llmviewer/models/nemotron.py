"""Nemotron-4 and Minitron (dense attention), Nemotron-H and Nemotron 3 (hybrids of Mamba-2 and attention)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError, unknown
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import DecoderLayer, FeedForward, Mixer
from llmviewer.layers.feed_forward import Mlp, Moe
from llmviewer.layers.recurrent import Mamba2
from llmviewer.models import parts
from llmviewer.models.config import Config, hidden_size, layer_count
from llmviewer.models.decoder import Decoder
from llmviewer.models.mamba import mamba2
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import layer_norm, rms_norm

#: Letters of `hybrid_override_pattern`.
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
#: Entries of `layers_block_type` in newer configs.
WORDS = {"linear_attention": "mamba", "full_attention": "attention", **{word: word for word in LETTERS.values()}}
#: Fields of feed-forward parts that a model may lack; the parts that it has read theirs.
OPTIONAL_PART_FIELDS = (
    "intermediate_size",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "moe_latent_size",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
)


#: NemotronForCausalLM: half of each head rotated, squared ReLU without a gate, LayerNorm with bias.
NEMOTRON = Decoder(
    defaults={"partial_rotary_factor": 0.5, "hidden_act": "relu2"},
    names={"kv_channels": "head_dim"},
    norm=layer_norm,
    gated=False,
)


def parse_nemotron_h(config: Config, dtype: Dtype) -> Model:
    """NemotronHForCausalLM: each layer has one part: Mamba-2, attention without rope, an MLP without a gate, or MoE."""
    config.expect("sliding_window", None)
    config.expect("mamba_hidden_act", "silu")
    for bias in ("attention_bias", "mlp_bias", "mamba_proj_bias"):
        config.expect(bias, False)
    config.ignore("chunk_size", "use_mamba_kernels", "num_logits_to_keep", *OPTIONAL_PART_FIELDS)
    config.ignore("expand", "time_step_rank", "partial_rotary_factor", "moe_shared_expert_overlap")  # unused
    config.ignore("mtp_layers_block_type", "mtp_hybrid_override_pattern")  # multi-token prediction
    config.defaults(hidden_act=config.get("mlp_hidden_act", "relu2"), head_dim=config.get("attention_head_dim", 128))
    norms = parts.pre_norms(config, dtype)

    def layer(kind: str, repeats: int) -> DecoderLayer:
        empty = DecoderLayer(name=kind, repeats=repeats, norms=norms)
        if kind in MIXERS:
            return replace(empty, mixer=MIXERS[kind](config, dtype))
        return replace(empty, feed_forward=FEED_FORWARDS[kind](config, dtype))

    layers = parts.group_layers(_layer_kinds(config), layer)
    built = parts.model(config, dtype, layers, rms_norm("final_norm", hidden_size(config), dtype))
    return parts.with_state_note(built, config, "mamba_ssm_cache_dtype")


def _layer_kinds(config: Config) -> list[str]:
    """The part of every layer: `mamba`, `attention`, `mlp` or `moe`.  Newer configs state only the list."""
    for name in ("layers_block_type", "layer_types"):
        if isinstance(config.get(name), list):
            config.defaults(num_hidden_layers=len(config.get(name)))
    layers = layer_count(config)
    for name in ("layers_block_type", "layer_types"):
        if config.has(name):
            return [WORDS[word] for word in config.words(name, WORDS, layers)]
    pattern = config.text("hybrid_override_pattern")
    if len(pattern) != layers:
        raise UserError(f"{config.where}: hybrid_override_pattern has {len(pattern)} letters for {layers} layers")
    for letter in pattern:
        if letter not in LETTERS:
            raise unknown("letter of hybrid_override_pattern", letter, LETTERS, where=config.where)
    return [LETTERS[letter] for letter in pattern]


def _mamba(config: Config, dtype: Dtype) -> Mamba2:
    heads, head_dim = config.count("mamba_num_heads"), config.count("mamba_head_dim")
    return mamba2(config, dtype, heads=heads, head_dim=head_dim, state=config.count("ssm_state_size", 128))


def _attention(config: Config, dtype: Dtype) -> Attention:
    return replace(parts.attention(config, dtype, Projections()), rotary_dim=0)


def _mlp(config: Config, dtype: Dtype) -> Mlp:
    return replace(parts.mlp(config, dtype, config.count("intermediate_size")), gated=False)


def _experts(config: Config, dtype: Dtype) -> Moe:
    """Routed experts, `moe_latent_size` wide if the config has it, and a shared expert with its own size."""
    config.expect("n_shared_experts", 1)
    moe = parts.moe(config, dtype, config.count("moe_intermediate_size"))
    latent = config.count("moe_latent_size", 0, minimum=0)
    expert = replace(moe.expert, gated=False, hidden=latent or moe.hidden)
    shared = replace(moe.expert, gated=False, intermediate=config.count("moe_shared_expert_intermediate_size"))
    return replace(moe, expert=expert, shared=shared, latent=latent, correction_bias=True)


MIXERS: dict[str, Callable[[Config, Dtype], Mixer]] = {"mamba": _mamba, "attention": _attention}
FEED_FORWARDS: dict[str, Callable[[Config, Dtype], FeedForward]] = {"mlp": _mlp, "moe": _experts}
