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
from llmviewer.models.decoder import Decoder
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation, layer_norm


def _time_mix(config: Config, dtype: Dtype) -> TimeMix:
    hidden = hidden_size(config)
    return TimeMix(hidden=hidden, width=config.count("attention_hidden_size", hidden), dtype=dtype)


def _channel_mix(config: Config, dtype: Dtype) -> ChannelMix:
    hidden = hidden_size(config)
    return ChannelMix(hidden=hidden, intermediate=config.count("intermediate_size", 4 * hidden), dtype=dtype)


#: RwkvForCausalLM: LayerNorms, one more of them after the embedding.
RWKV = Decoder(
    # halves weights of later layers against overflow: no work; the context of the training: the state has no limit
    ignored="rescale_every context_length",
    mixers=_time_mix,
    dense=_channel_mix,
    norm=layer_norm,
    embedding_norm=True,
)

#: Fields that choose kernels and number formats of intermediate results.
KERNEL_FIELDS = (
    "chunkwise_kernel sequence_kernel step_kernel mode chunk_size return_last_states autocast_kernel_dtype eps "
    "norm_reduction_force_float32 weight_mode max_inference_chunksize gate_soft_cap add_out_norm norm_eps"
)


def _xlstm_width(config: Config) -> None:
    """The width of the MLP, rounded up to a multiple."""
    width = hidden_size(config) * config.number("ffn_proj_factor", 2.667)
    multiple = config.count("ffn_round_up_to_multiple_of", 64)
    config.override(intermediate_size=int((width + multiple - 1) // multiple) * multiple)


def _matrix_lstm(config: Config, dtype: Dtype) -> MatrixLstm:
    hidden = hidden_size(config)
    return MatrixLstm(
        hidden=hidden,
        heads=config.count("num_heads", 8),
        key_width=int(hidden * config.number("qk_dim_factor", 0.5)),
        value_width=int(hidden * config.number("v_dim_factor", 1.0)),
        dtype=dtype,
    )


def _capped(model: Model, config: Config) -> Model:
    return parts.with_logit_cap(model, capped=config.number("output_logit_soft_cap", 30.0) > 0)


#: xLSTMForCausalLM: a matrix LSTM and a gated MLP per layer, capped logits.
XLSTM = Decoder(
    names={"embedding_dim": "hidden_size", "num_blocks": "num_hidden_layers", "num_heads": "num_heads"},
    constants={"use_bias": False, "inference_state_dtype": "float32"},
    ignored=KERNEL_FIELDS,
    prepare=_xlstm_width,
    mixers=_matrix_lstm,
    mlp_bias=False,
    finish=_capped,
)

#: Entries of `block_types`, which the layers repeat in turn.
BLOCKS = ("recurrent", "attention")


def _gemma_fields(config: Config) -> None:
    """The MLP is half as wide as stated; one key-value head for each query head."""
    config.defaults(num_key_value_heads=head_count(config))
    config.override(intermediate_size=config.count("intermediate_size") // 2)


def _gemma_mixers(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    return {"attention": _attention(config, dtype), "recurrent": _recurrent(config, dtype)}


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


def _gemma_cap(model: Model, config: Config) -> Model:
    return parts.with_logit_cap(model, capped=config.number("logits_soft_cap", 30.0) > 0)


#: RecurrentGemmaForCausalLM: an MLP half as wide as stated, scaled embeddings, capped logits, a tied head.
RECURRENT_GEMMA = Decoder(
    defaults={
        **{"tie_word_embeddings": True, "partial_rotary_factor": 0.5, "hidden_activation": "gelu_pytorch_tanh"},
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    constants={"embeddings_scale_by_sqrt_dim": True, "sliding_window": None},
    ignored="w_init_variance_scale final_w_init_variance_scale",  # training only
    prepare=_gemma_fields,
    mixers=_gemma_mixers,
    types=_words,
    mlp_bias=True,
    scaled=True,
    finish=_gemma_cap,
)
