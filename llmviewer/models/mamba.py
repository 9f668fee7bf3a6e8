"""Mamba, Falcon-Mamba and Mamba-2 without attention, Jamba, and the mixers that Nemotron-H and Zamba take from them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Projections
from llmviewer.layers.decoder import DecoderLayer, Mixer, Norms
from llmviewer.layers.recurrent import Mamba, Mamba2
from llmviewer.models import parts
from llmviewer.models.config import Config, group_count, hidden_size, layer_count
from llmviewer.models.decoder import Decoder
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import rms_norm


def parse_mamba(config: Config, dtype: Dtype) -> Model:
    """MambaForCausalLM (the Hub's `-hf` checkpoints), with a tied head."""
    return _model(config, dtype, _mamba(config, dtype))


def parse_falcon_mamba(config: Config, dtype: Dtype) -> Model:
    """FalconMambaForCausalLM: Mamba with norms on time steps, B and C that have no weights."""
    config.ignore("mixer_rms_eps", "use_falcon_mambapy")  # no shapes; choice of kernel
    return _model(config, dtype, replace(_mamba(config, dtype), inner_norms=True, norm_weights=False))


def _mamba(config: Config, dtype: Dtype) -> Mamba:
    config.defaults(tie_word_embeddings=True)
    config.expect("ssm_cfg", {})
    config.ignore("fused_add_norm", "use_mambapy", "use_associative_scan")  # choice of kernel
    config.ignore("pad_vocab_size_multiple")  # vocab_size is already padded
    return Mamba(
        hidden=hidden_size(config),
        inner=_inner(config),
        state=config.count("state_size", 16),
        dt_rank=dt_rank(config, "time_step_rank"),
        kernel=config.count("conv_kernel", 4),
        dtype=dtype,
        bias=config.flag("use_bias", default=False),
        conv_bias=config.flag("use_conv_bias", default=True),
    )


def parse_mamba2(config: Config, dtype: Dtype) -> Model:
    """Mamba2ForCausalLM: heads and groups, and a gated norm before out_proj."""
    config.ignore("time_step_rank", "chunk_size")  # unused by Mamba-2; part of the chunked scan
    config.ignore("norm_before_gate")  # the same work in either order
    heads, head_dim = config.count("num_heads", 128), config.count("head_dim", 64)
    mixer = mamba2(config, dtype, heads=heads, head_dim=head_dim, state=config.count("state_size", 128))
    if mixer.inner != _inner(config):
        raise UserError(f"{config.where}: num_heads x head_dim is {mixer.inner}, expand x hidden_size {_inner(config)}")
    return _model(config, dtype, mixer)


def mamba2(config: Config, dtype: Dtype, *, heads: int, head_dim: int, state: int) -> Mamba2:
    """Mamba-2 of these sizes, with the fields of groups, convolution and biases that its families share."""
    bias = config.flag("use_bias", default=False)
    return Mamba2(
        hidden=hidden_size(config),
        heads=heads,
        head_dim=head_dim,
        groups=group_count(config, "n_groups", 8, heads=heads),
        state=state,
        kernel=config.count("conv_kernel", 4),
        dtype=dtype,
        bias=bias,
        out_bias=bias,
        conv_bias=config.flag("use_conv_bias", default=True),
    )


def prefixed_mamba(config: Config, dtype: Dtype) -> Mamba:
    """Mamba-1 of a hybrid, whose fields begin with `mamba_`."""
    hidden = hidden_size(config)
    return Mamba(
        hidden=hidden,
        inner=config.count("mamba_expand", 2) * hidden,
        state=config.count("mamba_d_state", 16),
        dt_rank=dt_rank(config, "mamba_dt_rank"),
        kernel=config.count("mamba_d_conv", 4),
        dtype=dtype,
        bias=config.flag("mamba_proj_bias", default=False),
        conv_bias=config.flag("mamba_conv_bias", default=True),
    )


def dt_rank(config: Config, name: str) -> int:
    """Rank of Mamba-1's time-step projection; `auto` is hidden_size / 16, rounded up."""
    is_auto = config.get(name, "auto") == "auto"
    return ceil(hidden_size(config) / 16) if is_auto else config.count(name)


def _inner(config: Config) -> int:
    """Channels of the state-space model: expand x hidden_size."""
    inner = config.count("expand", 2) * hidden_size(config)
    for name in ("intermediate_size", "d_inner"):
        config.expect(name, inner)
    return inner


def _model(config: Config, dtype: Dtype, mixer: Mixer) -> Model:
    config.expect("rms_norm", True)
    config.expect("hidden_act", "silu")
    hidden = hidden_size(config)
    norms = Norms(attn=rms_norm("attn_norm", hidden, dtype))
    layer = DecoderLayer(name="mamba", repeats=layer_count(config), norms=norms, mixer=mixer)
    return parts.model(config, dtype, (layer,), rms_norm("final_norm", hidden, dtype))


def _periodic(config: Config, prefix: str, words: tuple[str, str]) -> list[str]:
    """For every layer the first word if layer mod period equals the offset, else the second."""
    period = config.count(f"{prefix}_layer_period")
    offset = config.count(f"{prefix}_layer_offset", minimum=0)
    return [words[0] if layer % period == offset else words[1] for layer in range(layer_count(config))]


def _jamba_mixing(config: Config) -> list[str]:
    return _periodic(config, "attn", ("attention", "mamba"))


def _jamba_placement(config: Config) -> list[str]:
    words = _periodic(config, "expert", ("moe", "dense"))
    return ["dense"] * len(words) if config.count("num_experts", 16) == 1 else words


def _jamba_mixers(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    attention = replace(parts.attention(config, dtype, Projections()), rotary_dim=0)
    return {"attention": attention, "mamba": replace(prefixed_mamba(config, dtype), inner_norms=True)}


#: JambaForCausalLM: Mamba-1 with norms on time steps, B and C; attention without rope; experts as wide as dense MLPs.
JAMBA = Decoder(
    constants={"sliding_window": None},
    ignored="use_mamba_kernels use_mambapy use_associative_scan num_logits_to_keep num_experts_per_tok",
    mixers=_jamba_mixers,
    types=_jamba_mixing,
    mlp_bias=False,
    experts=parts.wide_moe,
    placement=_jamba_placement,
)
