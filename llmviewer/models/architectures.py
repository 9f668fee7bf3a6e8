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
    "bert": "bert.parse_bert",
    "bloom": "bloom.parse_bloom",
    "camembert": "bert.parse_roberta",
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
    "qwen2_moe": "qwen.parse_qwen2_moe",
    "qwen3": "qwen.parse_qwen3",
    "qwen3_5_moe_text": "qwen3_next.parse_qwen3_5_moe",
    "qwen3_5_text": "qwen3_next.parse_qwen3_5",
    "qwen3_moe": "qwen.parse_qwen3_moe",
    "qwen3_next": "qwen3_next.parse_qwen3_next",
    "roberta": "bert.parse_roberta",
    "smollm3": "llama.parse_smollm3",
    "starcoder2": "gpt.parse_starcoder2",
    "xlm-roberta": "bert.parse_roberta",
}

#: model_type of a multimodal config -> model_type of its language model, whose fields are in `text_config`.
MULTIMODAL: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "kimi_vl": "deepseek_v3",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}


def known_model_types() -> list[str]:
    """Every supported model_type, sorted."""
    return sorted((*ARCHITECTURES, *MULTIMODAL))


def parser(model_type: str) -> Parser:
    """The parser of a supported model_type."""
    if model_type in MULTIMODAL:
        from llmviewer.models.parts import text_config_parser

        return text_config_parser(parser(MULTIMODAL[model_type]))
    module, function = ARCHITECTURES[model_type].split(".")
    found: Parser = getattr(import_module(f"llmviewer.models.{module}"), function)
    return found
