"""Configs as an architecture's first checkpoints have them, before transformers had its class.

Falcon as RefinedWeb, OLMo of the `hf_olmo` package, Mamba of the `mamba_ssm` package.
"""

from __future__ import annotations

from typing import Any

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError, quoted
from llmviewer.models.bloom import parse_falcon
from llmviewer.models.config import Config
from llmviewer.models.gpt import OLMO
from llmviewer.models.mamba import parse_mamba, parse_mamba2
from llmviewer.models.model import Model

#: Fields of the `mamba_ssm` package -> those of transformers.
MAMBA_NAMES = {
    "d_state": "state_size",
    "d_conv": "conv_kernel",
    "expand": "expand",
    "headdim": "head_dim",
    "ngroups": "n_groups",
    "dt_rank": "time_step_rank",
    "chunk_size": "chunk_size",
}


def parse_refined_web(config: Config, dtype: Dtype) -> Model:
    """RWForCausalLM: a config with `n_head_kv` has Falcon's new decoder (40B), any other the old one (7B, RW-1B).

    Source: https://huggingface.co/tiiuae/falcon-40b, configuration_RW.py, modelling_RW.py of May 2023.
    """
    if config.has("n_head_kv"):
        config.defaults(num_kv_heads=config.count("n_head_kv"), new_decoder_architecture=True)
    config.defaults(multi_query=False, parallel_attn=False)
    return parse_falcon(config, dtype)


#: Fields of `hf_olmo` with the one value that makes its layers those of OlmoForCausalLM.
OLMO_CONSTANTS: dict[str, Any] = {
    "activation_type": "swiglu",
    "alibi": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_type": "sequential",
    "include_bias": False,
    "layer_norm_type": "default",
    "layer_norm_with_affine": False,
    "multi_query_attention": False,
    "rope": True,
}


def parse_olmo(config: Config, dtype: Dtype) -> Model:
    """OlmoForCausalLM; the first checkpoints have this model_type too, with `d_model`."""
    return parse_hf_olmo(config, dtype) if config.has("d_model") else OLMO(config, dtype)


def parse_hf_olmo(config: Config, dtype: Dtype) -> Model:
    """OLMoForCausalLM: OLMo by other names; `mlp_hidden_size` holds gate and up together, tables are padded.

    Source: https://github.com/allenai/OLMo, hf_olmo and olmo/config.py.
    """
    for name, value in OLMO_CONSTANTS.items():
        if name != "layer_norm_type" or config.get(name) != "low_precision":
            config.expect(name, value)
    hidden = config.count("d_model")
    both = config.count("mlp_hidden_size", config.count("mlp_ratio", 4) * hidden)
    rows = config.count("embedding_size", config.count("vocab_size"))
    if both % 2:
        raise UserError(f"{config.where}: field 'mlp_hidden_size' is {both}, which is not even")
    config.override(intermediate_size=both // 2, vocab_size=rows, hidden_act="silu")
    config.defaults(
        tie_word_embeddings=config.flag("weight_tying", default=True), num_key_value_heads=config.get("n_kv_heads")
    )
    config.ignore(
        *"alibi_bias_max attention_layer_norm_with_affine block_group_size init_cutoff_factor init_fn precision "
        "rope_full_precision scale_logits layer_norm_eps embedding_layer_norm norm_after".split()
    )
    return OLMO(config, dtype)


def parse_mamba_ssm(config: Config, dtype: Dtype) -> Model:
    """MambaLMHeadModel: Mamba, or Mamba-2 if `ssm_cfg` says so; the table is padded to a multiple.

    Source: https://github.com/state-spaces/mamba, mamba_ssm/models/config_mamba.py, mixer_seq_simple.py.
    """
    for name in ("d_intermediate", "attn_layer_idx"):
        config.expect(name, 0, [])  # an MLP, or layers of attention
    config.ignore("attn_cfg")
    own = config.section("ssm_cfg")
    layer, multiple = own.text("layer", "Mamba1"), config.count("pad_vocab_size_multiple", 8)
    unknown = [name for name in own.fields if name not in (*MAMBA_NAMES, "layer")]
    if unknown or layer not in ("Mamba1", "Mamba2"):
        raise UserError(f"{config.where}: ssm_cfg: field {quoted(unknown[0] if unknown else layer)} is not supported")
    config.override(
        ssm_cfg={},
        vocab_size=-(-config.count("vocab_size") // multiple) * multiple,
        tie_word_embeddings=config.flag("tie_embeddings", default=True),
        **{MAMBA_NAMES[name]: own.get(name) for name in own.fields if name != "layer"},
    )
    if layer == "Mamba1":
        return parse_mamba(config, dtype)
    config.expect("ssm_cfg", {})
    config.ignore("fused_add_norm")
    width = config.count("expand", 2) * config.count("d_model")
    config.defaults(num_heads=width // config.count("head_dim", 64), n_groups=1)
    return parse_mamba2(config, dtype)
