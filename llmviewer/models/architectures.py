"""The registry of architectures: `model_type` -> parser (Config x Dtype -> Model).

A new architecture is one parser function in the file of its family, and one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from llmviewer.core.dtypes import Dtype
from llmviewer.models.config import Config
from llmviewer.models.model import Model

Parser: TypeAlias = Callable[[Config, Dtype], Model]

#: model_type -> "module.function" in this folder; only the requested module is imported.
ARCHITECTURES: dict[str, str] = {
    "baichuan": "llama.parse_baichuan",
    "bloom": "bloom.parse_bloom",
    "chatglm": "glm.parse_chatglm",
    "cohere": "cohere.parse_cohere",
    "cohere2": "cohere.parse_cohere2",
    "dbrx": "mixtral.parse_dbrx",
    "deepseek_v2": "deepseek.parse_deepseek_v2",
    "deepseek_v3": "deepseek.parse_deepseek_v3",
    "falcon": "bloom.parse_falcon",
    "gemma": "gemma.parse_gemma",
    "gemma2": "gemma.parse_gemma2",
    "gemma3_text": "gemma.parse_gemma3",
    "gemma4_text": "gemma4.parse_gemma4",
    "glm": "glm.parse_glm",
    "glm4": "glm.parse_glm4",
    "glm4_moe": "glm.parse_glm4_moe",
    "glm4v_moe_text": "glm.parse_glm4_moe",
    "glm4v_text": "glm.parse_glm4",
    "gpt2": "gpt.parse_gpt2",
    "gpt_bigcode": "gpt.parse_gpt_bigcode",
    "gpt_neox": "gpt.parse_gpt_neox",
    "gpt_oss": "mixtral.parse_gpt_oss",
    "gptj": "gpt.parse_gptj",
    "granite": "llama.parse_granite",
    "internlm2": "llama.parse_internlm2",
    "jamba": "jamba.parse_jamba",
    "kimi_k2": "deepseek.parse_deepseek_v3",
    "llama": "llama.parse_llama",
    "llama4_text": "llama4.parse_llama4",
    "mamba": "mamba.parse_mamba",
    "mamba2": "mamba.parse_mamba2",
    "mimo_v2_flash": "mimo.parse_mimo_v2_flash",
    "minimax": "minimax.parse_minimax",
    "minimax_m2": "minimax.parse_minimax_m2",
    "minimax_text_01": "minimax.parse_minimax_text_01",
    "mistral": "llama.parse_mistral",
    "mixtral": "mixtral.parse_mixtral",
    "mpt": "bloom.parse_mpt",
    "nemotron": "nemotron.parse_nemotron",
    "nemotron_h": "nemotron.parse_nemotron_h",
    "olmo2": "llama.parse_olmo2",
    "olmoe": "mixtral.parse_olmoe",
    "opt": "gpt.parse_opt",
    "phi": "gpt.parse_phi",
    "phi3": "llama.parse_phi3",
    "phimoe": "mixtral.parse_phimoe",
    "qwen2": "qwen.parse_qwen2",
    "qwen2_5_omni_text": "qwen.parse_qwen2",
    "qwen2_5_vl_text": "qwen.parse_qwen2",
    "qwen2_moe": "qwen.parse_qwen2_moe",
    "qwen2_vl_text": "qwen.parse_qwen2",
    "qwen3": "qwen.parse_qwen3",
    "qwen3_5_moe_text": "qwen3_next.parse_qwen3_5_moe",
    "qwen3_5_text": "qwen3_next.parse_qwen3_5",
    "qwen3_moe": "qwen.parse_qwen3_moe",
    "qwen3_next": "qwen3_next.parse_qwen3_next",
    "qwen3_omni_moe_text": "qwen.parse_qwen3_moe",
    "qwen3_vl_moe_text": "qwen.parse_qwen3_moe",
    "qwen3_vl_text": "qwen.parse_qwen3",
    "smollm3": "llama.parse_smollm3",
    "starcoder2": "gpt.parse_starcoder2",
}

#: model_type of a multimodal config -> model_type of its language model, if its own section does not say it.
MULTIMODAL: dict[str, str] = {
    "aya_vision": "cohere2",
    "blip-2": "opt",
    "cohere2_vision": "cohere2",
    "cosmos3_omni": "qwen3",
    "deepseek_vl": "llama",
    "deepseek_vl_hybrid": "llama",
    "deepseek_vl_v2": "deepseek_v2",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "glm46v": "glm4v_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "got_ocr2": "qwen2",
    "granite_speech": "granite",
    "idefics2": "mistral",
    "idefics3": "llama",
    "instructblip": "opt",
    "internvl": "qwen2",
    "internvl_chat": "internlm2",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "kimi_vl": "deepseek_v3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_llama": "llama",
    "llava_mistral": "mistral",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "llava_qwen": "qwen2",
    "minicpmo": "qwen2",
    "minicpmv": "qwen2",
    "mistral3": "mistral",
    "ovis": "qwen2",
    "ovis2": "qwen2",
    "ovis2_5": "qwen3",
    "paligemma": "gemma",
    "phi3_v": "phi3",
    "phi4mm": "phi3",
    "qwen2_5_omni": "qwen2_5_omni_text",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_asr": "qwen3",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "smolvlm": "llama",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}


def known_model_types() -> list[str]:
    """Every supported model_type, sorted."""
    return sorted((*ARCHITECTURES, *MULTIMODAL))


def language_parser(model_type: str) -> Parser:
    """The parser of a language model of its own."""
    module, function = ARCHITECTURES[model_type].split(".")
    found: Parser = getattr(import_module(f"llmviewer.models.{module}"), function)
    return found
