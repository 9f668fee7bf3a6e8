"""Experts in models that are not in transformers: Ling, Ring (`bailing_moe`), Step-3, DeepSeekMoE, Grok-1, MiniCPM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import QkNorm
from llmviewer.layers.feed_forward import Moe
from llmviewer.models import deepseek as latent
from llmviewer.models import parts, remote_code
from llmviewer.models.config import Config, layer_count
from llmviewer.models.decoder import AROUND, Decoder, with_attention
from llmviewer.models.experts import DenseFirst, Experts
from llmviewer.models.model import Model


def _ling_experts(config: Config, dtype: Dtype) -> Moe:
    """Experts; the shared ones may have a width of their own."""
    corrected = config.flag("moe_router_enable_expert_bias", default=False)
    plain = Experts(shared="num_shared_experts", correction_bias=corrected)(config, dtype)
    if not config.has("moe_shared_expert_intermediate_size") or plain.shared is None:
        return plain
    width = config.count("moe_shared_expert_intermediate_size") * config.count("num_shared_experts")
    return replace(plain, shared=parts.mlp(config, dtype, width))


bailing_moe = Decoder(
    fused=True,
    qkv_bias="use_qkv_bias",
    out_bias="use_bias",
    qk_norm=QkNorm.PER_HEAD,  # from Ling 2.0 on
    qk_norm_if="use_qk_norm",
    experts=_ling_experts,
    placement=DenseFirst(default=0),
    constants={
        "use_rmsnorm": True, "multi_gate": False, "use_sliding_window": False, "attention_bias": False,
        "moe_router_enable_shared_expert": True, "using_split_qkv_in_self_attention": False,
    },
    # normalisation of the head's weights happens when they are loaded
    ignored="norm_head norm_softmax output_dropout score_function router_dtype max_window_layers "
    "mtp_loss_scaling_factor moe_router_topk_scaling_factor rotary_dim",
)  # fmt: skip


def _step3_fields(config: Config) -> None:
    """Names of Step-3 under those of other families."""
    config.defaults(num_key_value_heads=config.count("num_attention_groups", 1), head_dim=256)
    config.defaults(max_position_embeddings=config.get("max_position_embedding", 65536))


def _step3_queries(model: Model, config: Config) -> Model:
    """The model with queries through a latent (multi-matrix factorisation attention)."""
    return with_attention(model, q_rank=config.count("share_q_dim", 2048))


def _listed_layers(config: Config) -> list[str]:
    """Experts in the layers that `moe_layers_enum` lists, as numbers or as text with commas, else from the fifth."""
    depth = layer_count(config)
    stated = config.get("moe_layers_enum", list(range(4, depth - 1)))
    numbers: Sequence[object] = stated.split(",") if isinstance(stated, str) else stated
    try:
        listed = {int(str(number)) for number in numbers}
    except (TypeError, ValueError):
        raise UserError(f"{config.where}: field 'moe_layers_enum' must list layer numbers") from None
    return ["moe" if layer in listed else "dense" for layer in range(depth)]


step3_text = Decoder(
    prepare=_step3_fields,
    qkv_bias=False,
    out_bias=False,
    experts=Experts(experts=("moe_num_experts",), chosen=("moe_top_k",), shared_width="share_expert_dim"),
    placement=_listed_layers,
    ignored="norm_expert_weight max_position_embedding",
    finish=_step3_queries,
)


#: https://huggingface.co/deepseek-ai/deepseek-moe-16b-base, modeling_deepseek.py: DeepSeek-V2 with plain attention.
deepseek = Decoder(
    experts=Experts(),
    placement=DenseFirst(default=0),
    constants={"moe_layer_freq": 1, "topk_method": "greedy"},
    ignored="q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim kv_lora_rank",
)


def deepseek_v2(config: Config, dtype: Dtype) -> Model:
    """DeepseekV2ForCausalLM; configs of vision models may turn latent attention off (`use_mla`)."""
    config.expect("lm_head", True)
    config.expect("rm_head", False)
    is_latent = config.flag("use_mla", default=True)
    return latent.deepseek_v2(config, dtype) if is_latent else deepseek(config, dtype)


def _grok_scores(model: Model, config: Config) -> Model:
    """The model with capped scores."""
    return with_attention(model, soft_cap=True)


#: https://huggingface.co/hpcai-tech/grok-1, modeling_grok1.py: norms around both parts, a head tied to the table.
grok_1 = Decoder(
    qkv_bias=False,
    out_bias=False,
    experts=Experts(width="intermediate_size", shared=""),
    places=AROUND,
    defaults={"hidden_act": "gelu", "num_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": True},
    ignored="attn_output_multiplier embedding_multiplier_scale output_multiplier_scale max_attn_value",
    tied=True,
    finish=_grok_scores,
)


#: https://huggingface.co/openbmb/MiniCPM-MoE-8x2B, modeling_minicpm.py: MiniCPM with experts.
MINICPM_MOE = Decoder(
    experts=Experts(width="intermediate_size", shared=""),
    ignored="scale_emb scale_depth dim_model_base",
    tied=True,
)


def minicpm(config: Config, dtype: Dtype) -> Model:
    """MiniCPMForCausalLM; with `num_experts` the MLP is one of several."""
    sparse = config.count("num_experts", 0, minimum=0) > 0
    built = MINICPM_MOE(config, dtype) if sparse else remote_code.MINICPM(config, dtype)
    if not config.has("sparse_config"):
        return built
    note = "sparse_config is not modelled: attention is counted over the whole context"
    config.ignore("sparse_config")
    return replace(built, notes=(*built.notes, note))
