"""Zamba (Mamba) and Zamba2 (Mamba-2): a transformer block with shared weights in some layers."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention
from llmviewer.layers.decoder import DecoderLayer, Mixer, Norms
from llmviewer.layers.feed_forward import Mlp
from llmviewer.layers.recurrent import Mamba, Mamba2
from llmviewer.layers.shared_block import SharedBlockMixer
from llmviewer.models import parts
from llmviewer.models.config import Config, group_count, head_count, hidden_size, kv_head_count, layer_count
from llmviewer.models.mamba import prefixed_mamba
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation, rms_norm

#: Entries of `layers_block_type`, in transformers 5 and before.
WORDS = {"linear_attention": "mamba", "mamba": "mamba", "m": "mamba", "hybrid": "hybrid", "g": "hybrid"}


def parse_zamba(config: Config, dtype: Dtype) -> Model:
    """ZambaForCausalLM: one shared block, without rope; Mamba with heads."""
    config.expect("hidden_mamba_act", "silu")
    config.ignore("use_associative_scan")
    period, offset = config.count("attn_layer_period", 6), config.count("attn_layer_offset", 4, minimum=0)
    later = ["hybrid" if layer % period == offset else "mamba" for layer in range(layer_count(config) - 3)]
    words = _words(config, ["mamba", "mamba", "hybrid", *later][: layer_count(config)])
    mixer = SharedBlockMixer(
        attention=_attention(config, dtype), mlp=_mlp(config, dtype), mamba=_mamba(config, dtype), dtype=dtype
    )
    return _model(config, dtype, words, mixer, copies=1)


def parse_zamba2(config: Config, dtype: Dtype) -> Model:
    """Zamba2ForCausalLM: `num_mem_blocks` shared blocks in turn, with low-rank additions of each layer's own."""
    config.ignore("use_mem_eff_path", "chunk_size", "use_long_context")  # choice of kernel; longer context
    config.ignore("kv_channels", "num_query_groups", "ffn_hidden_size")  # unused by the class
    config.ignore("hybrid_layer_ids")  # the class takes them from the list of layers
    six = ["mamba"] * 5 + ["hybrid"]
    default = ["mamba", *six * 7, *["mamba"] * 4, "hybrid", *["mamba"] * 3, "hybrid", "mamba", "mamba"]
    attention = _attention(config, dtype)
    if config.flag("use_mem_rope", default=False):
        attention = replace(attention, rotary_dim=attention.head_dim)
    mixer = SharedBlockMixer(
        attention=attention,
        mlp=replace(_mlp(config, dtype), fused=True, bias=config.flag("add_bias_linear", default=False)),
        mamba=_mamba2(config, dtype),
        dtype=dtype,
        adapter_rank=config.count("adapter_rank", 128),
        adapts_attention=config.flag("use_shared_attention_adapter", default=False),
    )
    return _model(config, dtype, _words(config, default), mixer, copies=config.count("num_mem_blocks", 1))


def _words(config: Config, default: list[str]) -> list[str]:
    """`mamba` or `hybrid` for every layer: `layers_block_type`, else the class's default."""
    depth = layer_count(config)
    name = config.first_present("layers_block_type", "layer_types")
    if config.has(name):
        return [WORDS[word] for word in config.words(name, WORDS, depth)]
    if len(default) != depth:
        raise UserError(f"{config.where}: missing field 'layers_block_type' for {depth} layers")
    return default


def _attention(config: Config, dtype: Dtype) -> Attention:
    """Attention over twice the hidden width, whose output is as wide as the residual stream."""
    hidden, heads = hidden_size(config), head_count(config)
    config.expect("attention_hidden_size", 2 * hidden)
    return Attention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_head_count(config),
        head_dim=config.count("attention_head_dim", 2 * hidden // heads),
        dtype=dtype,
        input_width=2 * hidden,
    )


def _mlp(config: Config, dtype: Dtype) -> Mlp:
    hidden = hidden_size(config)
    act = activation(config.text("hidden_act", "gelu"))
    width = config.count("intermediate_size", 4 * hidden)
    return Mlp(hidden=hidden, intermediate=width, activation=act, dtype=dtype)


def _mamba(config: Config, dtype: Dtype) -> Mamba:
    plain = prefixed_mamba(config, dtype)
    return replace(plain, heads=group_count(config, "n_mamba_heads", 2, heads=plain.inner))


def _mamba2(config: Config, dtype: Dtype) -> Mamba2:
    """Mamba-2; the class's convolution has a bias whatever `use_conv_bias` says."""
    config.ignore("use_conv_bias")
    inner = config.count("mamba_expand", 2) * hidden_size(config)
    heads = group_count(config, "n_mamba_heads", 8, heads=inner)
    config.expect("mamba_headdim", inner // heads)
    bias = config.flag("add_bias_linear", default=False)
    return Mamba2(
        hidden=hidden_size(config),
        heads=heads,
        head_dim=inner // heads,
        groups=group_count(config, "mamba_ngroups", 1, heads=heads),
        state=config.count("mamba_d_state", 64),
        kernel=config.count("mamba_d_conv", 4),
        dtype=dtype,
        bias=bias,
        out_bias=bias,
    )


def _model(config: Config, dtype: Dtype, words: list[str], mixer: SharedBlockMixer, copies: int) -> Model:
    config.ignore("use_mamba_kernels", "num_logits_to_keep")
    hidden = hidden_size(config)
    before = Norms(attn=rms_norm("attn_norm", hidden, dtype))
    mixers: dict[str, tuple[Mixer, Norms]] = {"mamba": (mixer.mamba, before), "hybrid": (mixer, Norms())}

    def layer(kind: str, repeats: int) -> DecoderLayer:
        part, norms = mixers[kind]
        return DecoderLayer(name=kind, repeats=repeats, norms=norms, mixer=part, copies=copies)

    layers = parts.group_layers(words, layer)
    return parts.model(config, dtype, layers, rms_norm("final_norm", hidden, dtype), tied=True)
