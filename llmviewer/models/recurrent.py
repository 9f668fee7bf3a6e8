"""Models without attention, or with little: RWKV-4, xLSTM (arXiv 2503.13427), RecurrentGemma (arXiv 2404.07839)."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import Mixer
from llmviewer.layers.linear_attention import MatrixLstm
from llmviewer.layers.recurrent import RgLru
from llmviewer.layers.rwkv4 import ChannelMix, TimeMix
from llmviewer.models import parts
from llmviewer.models.config import Config, head_count, hidden_size, layer_count
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation, layer_norm, rms_norm


def parse_rwkv(config: Config, dtype: Dtype) -> Model:
    """RwkvForCausalLM: LayerNorms, one more of them after the embedding."""
    config.ignore("rescale_every")  # halves weights of later layers against overflow: no work
    config.ignore("context_length")  # of the training; the state has no limit
    hidden = hidden_size(config)
    time_mix = TimeMix(hidden=hidden, width=config.count("attention_hidden_size", hidden), dtype=dtype)
    channel_mix = ChannelMix(hidden=hidden, intermediate=config.count("intermediate_size", 4 * hidden), dtype=dtype)
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype, layer_norm), time_mix, channel_mix)
    built = parts.model(config, dtype, layers, layer_norm("final_norm", hidden, dtype))
    return replace(built, embedding=replace(built.embedding, norm=layer_norm("embedding_norm", hidden, dtype)))


#: Fields that choose kernels and number formats of intermediate results.
KERNEL_FIELDS = (
    "chunkwise_kernel sequence_kernel step_kernel mode chunk_size return_last_states autocast_kernel_dtype eps "
    "norm_reduction_force_float32 weight_mode max_inference_chunksize gate_soft_cap add_out_norm norm_eps"
).split()


def parse_xlstm(config: Config, dtype: Dtype) -> Model:
    """xLSTMForCausalLM: a matrix LSTM and a gated MLP per layer, capped logits."""
    config.ignore(*KERNEL_FIELDS)
    config.defaults(hidden_size=config.get("embedding_dim"), num_hidden_layers=config.get("num_blocks"))
    config.expect("use_bias", False)
    config.expect("inference_state_dtype", "float32")
    hidden = hidden_size(config)
    config.expect("embedding_dim", hidden)
    config.ignore("num_blocks")
    width = hidden * config.number("ffn_proj_factor", 2.667)
    multiple = config.count("ffn_round_up_to_multiple_of", 64)
    mixer = MatrixLstm(
        hidden=hidden,
        heads=config.count("num_heads", 8),
        key_width=int(hidden * config.number("qk_dim_factor", 0.5)),
        value_width=int(hidden * config.number("v_dim_factor", 1.0)),
        dtype=dtype,
    )
    mlp = parts.mlp(config, dtype, int((width + multiple - 1) // multiple) * multiple)
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype), mixer, mlp)
    built = parts.model(config, dtype, layers, rms_norm("final_norm", hidden, dtype))
    return parts.with_logit_cap(built, capped=config.number("output_logit_soft_cap", 30.0) > 0)


#: Entries of `block_types`, which the layers repeat in turn.
BLOCKS = ("recurrent", "attention")


def parse_recurrent_gemma(config: Config, dtype: Dtype) -> Model:
    """RecurrentGemmaForCausalLM: an MLP half as wide as stated, scaled embeddings, capped logits, a tied head."""
    config.ignore("w_init_variance_scale", "final_w_init_variance_scale")  # training only
    config.expect("embeddings_scale_by_sqrt_dim", True)
    config.defaults(
        tie_word_embeddings=True,
        partial_rotary_factor=0.5,
        hidden_activation="gelu_pytorch_tanh",
        block_types=["recurrent", "recurrent", "attention"],
        num_key_value_heads=head_count(config),
    )
    mixers: dict[str, Mixer] = {"attention": _attention(config, dtype), "recurrent": _recurrent(config, dtype)}
    width = config.count("intermediate_size") // 2
    mlp = replace(parts.mlp(config, dtype, width), bias=True)
    kinds = [(word, "mlp") for word in _words(config)]
    layers = parts.layers_by_kind(kinds, parts.pre_norms(config, dtype), mixers, {"mlp": mlp})
    built = parts.model(config, dtype, layers, rms_norm("final_norm", hidden_size(config), dtype))
    capped = config.number("logits_soft_cap", 30.0) > 0
    return parts.with_logit_cap(replace(built, embedding=replace(built.embedding, scaled=True)), capped=capped)


def _words(config: Config) -> list[str]:
    """The mixer of every layer: the entries of `block_types`, from the first again when they end."""
    pattern = config.get("block_types")
    words = config.words("block_types", BLOCKS, len(pattern) if isinstance(pattern, list) else 1)
    if not words:
        raise UserError(f"{config.where}: field 'block_types' is empty")
    return [words[layer % len(words)] for layer in range(layer_count(config))]


def _attention(config: Config, dtype: Dtype) -> Attention:
    biases = Projections(qkv_bias=config.flag("attention_bias", default=False), out_bias=True)
    window = float(config.count("attention_window_size", 2048))
    return replace(parts.attention(config, dtype, biases), window=window)


def _recurrent(config: Config, dtype: Dtype) -> RgLru:
    width = config.count("lru_width", hidden_size(config))
    blocks = head_count(config)
    if width % blocks:
        raise UserError(f"{config.where}: lru_width {width} is not divisible by {blocks} heads")
    return RgLru(
        hidden=hidden_size(config),
        width=width,
        blocks=blocks,
        kernel=config.count("conv1d_width", 4),
        activation=activation(config.text("hidden_activation")),
        dtype=dtype,
    )
