"""xLSTM: layers of matrix memories and gated MLPs, without attention (arXiv 2503.13427)."""

from __future__ import annotations

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.mlstm import MatrixLstm
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.fields import hidden_size
from llmviewer.models.model import Model
from llmviewer.ops.norm import rms_norm

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
