"""Architectures that the library's causal classes do not know by name, and the class of equal shapes that stands in.

Their code comes with the checkpoints, or they are the text part of a multimodal model.
"""

from __future__ import annotations

from typing import Any

from . import layer_kinds as by
from . import reductions as cut
from .families import Code, Family

Fields = dict[str, Any]


def _plain(config: Fields) -> Fields:
    """The fields without vision parts and without rotary sections of pictures, which change no product."""
    return {name: value for name, value in config.items() if name not in ("rope_scaling", "vision_config")}


def _internlm(config: Fields) -> Fields:
    """InternLM -> Llama: `bias` stands for biases of the whole attention."""
    return {**config, "attention_bias": config.get("bias", True)}


def _exaone(config: Fields) -> Fields:
    """EXAONE 3 -> Llama by other names."""
    return {**config, "num_hidden_layers": config["num_layers"], "hidden_act": config["activation_function"]}


def _llada(config: Fields) -> Fields:
    """LLaDA -> Llama by other names; the mask of its attention changes no product."""
    names = {"n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads", "n_layers": "num_hidden_layers"}
    names |= {"d_model": "hidden_size", "mlp_hidden_size": "intermediate_size"}
    names |= {"max_sequence_length": "max_position_embeddings", "weight_tying": "tie_word_embeddings"}
    return {names.get(name, name): value for name, value in config.items()} | {"hidden_act": config["activation_type"]}


def _orion(config: Fields) -> Fields:
    """Orion -> StableLM: LayerNorm with biases, rotary embedding on the whole head."""
    return {**config, "use_qkv_bias": False, "partial_rotary_factor": 1.0}


def _stablelm_epoch(config: Fields) -> Fields:
    """StableLM as first published -> StableLM."""
    return {**config, "partial_rotary_factor": config["rope_pct"]}


def _qwen(config: Fields) -> Fields:
    """Qwen -> Qwen2: `intermediate_size` is the width of gate and up together; as many key-value heads as heads."""
    heads = config["num_attention_heads"]
    return {**config, "intermediate_size": config["intermediate_size"] // 2, "num_key_value_heads": heads}


def _ling(config: Fields) -> Fields:
    """Ling 2.0 -> GLM-4.5: one dense layer first, experts with a corrected sigmoid router, QK-norm per head."""
    names = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    return {**config, "attention_bias": config["use_qkv_bias"], **{new: config[old] for new, old in names.items()}}


def _stands_in(model_class: str, **facts: Any) -> Family:
    """A family run by another model's class."""
    return Family(model_class=model_class, code=Code.EQUIVALENT, **facts)


_QWEN2 = _stands_in("Qwen2ForCausalLM", layers=(by.layer_types,), cut=cut.windows_from_second_layer, fields=_plain)
_QWEN3_MOE = _stands_in("Qwen3MoeForCausalLM", layers=(by.sparse_step,), fields=_plain)
_LLAMA = _stands_in("LlamaForCausalLM")

EQUIVALENTS: dict[str, Family] = {
    "Dream": _stands_in("Qwen2ForCausalLM"),
    "Yi": _LLAMA,
    "aquila": _LLAMA,
    "bailing_moe": _stands_in("Glm4MoeForCausalLM", layers=(by.dense_first,), fields=_ling),
    "bailing_moe_v2": _stands_in("Glm4MoeForCausalLM", layers=(by.dense_first,), fields=_ling),
    "exaone": _stands_in("LlamaForCausalLM", fields=_exaone),
    "glm4v_moe_text": _stands_in("Glm4MoeForCausalLM", layers=(by.dense_first,), fields=_plain),
    "glm4v_text": _stands_in("Glm4ForCausalLM", fields=_plain),
    "granite4_vision_text": _stands_in("GraniteForCausalLM", fields=_plain),
    "granite_docling_text": _stands_in("GraniteForCausalLM", fields=_plain),
    "internlm": _stands_in("LlamaForCausalLM", fields=_internlm),
    "llada": _stands_in("LlamaForCausalLM", fields=_llada),
    "mimo": _stands_in("Qwen2ForCausalLM"),
    "mistral4": _stands_in("Mistral4ForCausalLM"),
    "orion": _stands_in("StableLmForCausalLM", fields=_orion),
    "paddleocr_vl_text": _stands_in("Ernie4_5ForCausalLM", fields=_plain),
    "qwen": _stands_in("Qwen2ForCausalLM", fields=_qwen),
    "qwen2_5_omni_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen3_omni_moe_text": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_vl_text": _stands_in("Qwen3ForCausalLM", fields=_plain),
    "skywork": _LLAMA,
    "solar": _stands_in("MistralForCausalLM"),
    "stablelm_epoch": _stands_in("StableLmForCausalLM", fields=_stablelm_epoch),
    "xverse": _LLAMA,
}
