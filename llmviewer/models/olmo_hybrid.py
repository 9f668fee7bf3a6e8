"""OLMo-Hybrid: the gated delta rule in most layers, attention in every fourth."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.decoder import DecoderLayer, Mixer
from llmviewer.layers.linear_attention import GatedDeltaNet
from llmviewer.models import parts
from llmviewer.models.config import Config, group_count, head_count, hidden_size, layer_count, layer_types
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import rms_norm


def parse_olmo_hybrid(config: Config, dtype: Dtype) -> Model:
    """OlmoHybridForCausalLM: norms after the parts of a layer with attention, before those of the others."""
    config.ignore("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor")
    config.ignore("linear_allow_neg_eigval")  # doubles beta
    config.defaults(rope_parameters=None)
    hidden, mlp = hidden_size(config), parts.mlp(config, dtype, config.count("intermediate_size"))
    norms = {"full": parts.post_norms(config, dtype), "linear": parts.pre_norms(config, dtype)}
    mixers: dict[str, Mixer] = {"full": _attention(config, dtype), "linear": _delta_net(config, dtype)}

    def layer(kind: str, repeats: int) -> DecoderLayer:
        return DecoderLayer(name=kind, repeats=repeats, norms=norms[kind], mixer=mixers[kind], feed_forward=mlp)

    layers = parts.group_layers(_words(config), layer)
    return parts.model(config, dtype, layers, rms_norm("final_norm", hidden, dtype))


def _words(config: Config) -> list[str]:
    """`full` for every fourth layer, and for the last one of a model that has fewer."""
    depth = layer_count(config)
    default = ["linear" if (layer + 1) % 4 else "full" for layer in range(depth)]
    return layer_types(config, ("linear", "full"), default if depth > 3 else [*default[:-1], "full"])


def _attention(config: Config, dtype: Dtype) -> Attention:
    """Attention with norms over all heads together; without rope if no frequency is stated."""
    rope = config.get("rope_parameters")
    rotates = (isinstance(rope, dict) and rope.get("rope_theta") is not None) or config.has("rope_theta")
    plain = replace(parts.attention(config, dtype, parts.projections(config)), qk_norm=QkNorm.WHOLE)
    return plain if rotates else replace(plain, rotary_dim=0)


def _delta_net(config: Config, dtype: Dtype) -> GatedDeltaNet:
    v_heads = config.count("linear_num_value_heads", head_count(config))
    k_heads = group_count(config, "linear_num_key_heads", min(v_heads, head_count(config)), heads=v_heads)
    k_dim = config.count("linear_key_head_dim", int(0.75 * hidden_size(config) / k_heads))
    return GatedDeltaNet(
        hidden=hidden_size(config),
        k_heads=k_heads,
        v_heads=v_heads,
        k_dim=k_dim,
        v_dim=config.count("linear_value_head_dim", 2 * k_dim),
        kernel=config.count("linear_conv_kernel_dim", 4),
        dtype=dtype,
        fused=False,
    )
