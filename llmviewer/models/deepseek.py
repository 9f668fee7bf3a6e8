"""DeepSeek-V2, V3 and R1, and Kimi-K2 (V3's layout): latent attention and many small experts."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.decoder import FeedForward
from llmviewer.layers.mla import Mla
from llmviewer.layers.moe import Moe
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.fields import head_count, hidden_size, layer_count
from llmviewer.models.model import Model
from llmviewer.ops.norm import rms_norm


def parse_deepseek_v2(config: Config, dtype: Dtype) -> Model:
    """DeepseekV2ForCausalLM: experts chosen by softmax scores."""
    config.expect("topk_method", "greedy", "group_limited_greedy")
    return _model(config, dtype, _experts(config, dtype))


def parse_deepseek_v3(config: Config, dtype: Dtype) -> Model:
    """DeepseekV3ForCausalLM (V3, R1, Kimi-K2): experts chosen by sigmoid scores plus a stored bias."""
    config.expect("topk_method", "noaux_tc")
    return _model(config, dtype, replace(_experts(config, dtype), correction_bias=True))


def dense_first(config: Config) -> list[str]:
    """`dense` for the first `first_k_dense_replace` layers, `moe` after them."""
    dense = config.count("first_k_dense_replace", minimum=0)
    return ["dense" if layer < dense else "moe" for layer in range(layer_count(config))]


def _experts(config: Config, dtype: Dtype) -> Moe:
    config.expect("moe_layer_freq", 1)
    return parts.moe(config, dtype, config.count("moe_intermediate_size"))


def latent_attention(config: Config, dtype: Dtype) -> Mla:
    """Latent attention from the usual fields."""
    heads, rope_dim = head_count(config), config.count("qk_rope_head_dim")
    config.expect("num_key_value_heads", heads)  # the latent is expanded for every head
    config.expect("head_dim", rope_dim)
    config.expect("qk_head_dim", config.count("qk_nope_head_dim") + rope_dim)
    return Mla(
        hidden=hidden_size(config),
        heads=heads,
        q_rank=_q_rank(config),
        kv_rank=config.count("kv_lora_rank"),
        nope_dim=config.count("qk_nope_head_dim"),
        rope_dim=rope_dim,
        v_dim=config.count("v_head_dim"),
        dtype=dtype,
        bias=config.flag("attention_bias", default=False),
    )


def _q_rank(config: Config) -> int:
    """Rank of the queries' latent; 0 if `q_lora_rank` is null (V2-Lite).  A missing field is an error."""
    is_null = "q_lora_rank" in config.fields and not config.has("q_lora_rank")
    return 0 if is_null else config.count("q_lora_rank")


def _model(config: Config, dtype: Dtype, experts: Moe) -> Model:
    config.expect("mlp_bias", False)
    dense = parts.mlp(config, dtype, config.count("intermediate_size"))
    kinds = [("latent", word) for word in dense_first(config)]
    feed_forwards: dict[str, FeedForward] = {"dense": dense, "moe": experts}
    layers = parts.layers_by_kind(
        kinds, parts.pre_norms(config, dtype), {"latent": latent_attention(config, dtype)}, feed_forwards
    )
    return parts.model(config, dtype, layers, rms_norm("final_norm", hidden_size(config), dtype))
