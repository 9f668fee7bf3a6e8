"""model_type -> parser: Config x Dtype -> Model.  A new architecture is one parser file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from llmviewer.core.dtypes import Dtype
from llmviewer.models.config import Config
from llmviewer.models.model import Model

Parser: TypeAlias = Callable[[Config, Dtype], Model]

#: model_type -> module of this folder and function; only the module asked for is imported.
ARCHITECTURES: dict[str, str] = {
    "baichuan": "llama.parse_baichuan",
    "bloom": "bloom.parse_bloom",
    "chatglm": "glm.parse_chatglm",
    "cohere": "cohere.parse_cohere",
    "cohere2": "cohere.parse_cohere2",
    "dbrx": "dbrx.parse",
    "deepseek_v2": "deepseek.parse_v2",
    "deepseek_v3": "deepseek.parse_v3",
    "falcon": "falcon.parse",
    "gemma": "gemma.parse_gemma",
    "gemma2": "gemma.parse_gemma2",
    "gemma3_text": "gemma.parse_gemma3",
    "gemma4_text": "gemma4.parse",
    "glm": "glm.parse_glm",
    "glm4": "glm.parse_glm4",
    "glm4_moe": "glm.parse_glm4_moe",
    "gpt2": "gpt2.parse_gpt2",
    "gpt_bigcode": "gpt2.parse_gpt_bigcode",
    "gpt_neox": "gpt_neox.parse_gpt_neox",
    "gpt_oss": "gpt_oss.parse",
    "gptj": "gpt_neox.parse_gptj",
    "granite": "granite.parse",
    "internlm2": "llama.parse_internlm2",
    "jamba": "jamba.parse",
    "kimi_k2": "deepseek.parse_v3",
    "llama": "llama.parse",
    "llama4_text": "llama4.parse",
    "mamba": "mamba.parse_mamba",
    "mamba2": "mamba.parse_mamba2",
    "mimo_v2_flash": "mimo.parse",
    "minimax": "minimax.parse_minimax",
    "minimax_m2": "minimax.parse_m2",
    "minimax_text_01": "minimax.parse_text_01",
    "mistral": "mistral.parse_mistral",
    "mixtral": "mistral.parse_mixtral",
    "mpt": "bloom.parse_mpt",
    "nemotron": "nemotron.parse",
    "nemotron_h": "nemotron_h.parse",
    "olmo2": "olmo.parse_olmo2",
    "olmoe": "olmo.parse_olmoe",
    "opt": "opt.parse",
    "phi": "phi.parse_phi",
    "phi3": "phi.parse_phi3",
    "phimoe": "phi.parse_phimoe",
    "qwen2": "qwen.parse_qwen2",
    "qwen2_moe": "qwen.parse_qwen2_moe",
    "qwen3": "qwen.parse_qwen3",
    "qwen3_5_moe_text": "qwen3_next.parse_qwen3_5_moe",
    "qwen3_5_text": "qwen3_next.parse_qwen3_5",
    "qwen3_moe": "qwen.parse_qwen3_moe",
    "qwen3_next": "qwen3_next.parse_qwen3_next",
    "smollm3": "smollm3.parse",
    "starcoder2": "starcoder2.parse",
}

#: model_type of a multimodal config -> that of its language model, which stands in `text_config`.
MULTIMODAL: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}


def known() -> list[str]:
    """Every model_type we read."""
    return sorted((*ARCHITECTURES, *MULTIMODAL))


def parser(model_type: str) -> Parser:
    """The parser of a known model_type."""
    if model_type in MULTIMODAL:
        from llmviewer.models.parts import text_of

        return text_of(parser(MULTIMODAL[model_type]))
    module, function = ARCHITECTURES[model_type].split(".")
    found: Parser = getattr(import_module(f"llmviewer.models.{module}"), function)
    return found
