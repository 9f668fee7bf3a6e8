"""The registry of architectures: `model_type` -> parser (Config x Dtype -> Model).

A new architecture is one entry of the form `dense.Dense`, or one parser function, in the file of its family, and one
line here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from llmviewer.core.dtypes import Dtype
from llmviewer.models.config import Config
from llmviewer.models.model import Model

Parser: TypeAlias = Callable[[Config, Dtype], Model]

#: model_type -> "module.entry" or "module.function" in this folder; only the requested module is imported.
ARCHITECTURES: dict[str, str] = {
    "Yi": "llama.LLAMA",
    "afmoe": "sparse_families.afmoe",
    "apertus": "llama_like.APERTUS",
    "aquila": "llama.LLAMA",
    "arcee": "llama_like.ARCEE",
    "aria_text": "sparse_families.aria_text",
    "axk1": "deepseek.axk1",
    "axk2": "deepseek.axk2",
    "baichuan": "llama.parse_baichuan",
    "bailing_moe": "custom_experts.bailing_moe",
    "bailing_moe_v2": "custom_experts.bailing_moe",
    "biogpt": "gpt_like.BIOGPT",
    "bitnet": "llama_like.BITNET",
    "bloom": "bloom.parse_bloom",
    "chatglm": "glm.parse_chatglm",
    "codegen": "gpt_like.CODEGEN",
    "cohere": "cohere.parse_cohere",
    "cohere2": "cohere.parse_cohere2",
    "cohere2_moe": "sparse_families.cohere2_moe",
    "cohere_compass_text": "cohere.COHERE_COMPASS",
    "cpmant": "one_of_a_kind.parse_cpmant",
    "ctrl": "gpt_like.CTRL",
    "cwm": "windowed.CWM",
    "dbrx": "mixtral.parse_dbrx",
    "deepseek_v2": "deepseek.deepseek_v2",
    "deepseek_v3": "deepseek.deepseek_v3",
    "deepseek_v32": "deepseek.deepseek_v32",
    "deepseek_v4": "deepseek_v4.deepseek_v4",
    "diffllama": "one_of_a_kind.parse_diffllama",
    "doge": "one_of_a_kind.parse_doge",
    "dots1": "sparse_families.dots1",
    "dots3_note_text": "dots.dots3_note",
    "emu3_text_model": "llama_like.EMU3",
    "ernie4_5": "llama_like.ERNIE4_5",
    "ernie4_5_moe": "sparse_families.ernie4_5_moe",
    "exaone": "remote_code.EXAONE",
    "exaone4": "windowed.EXAONE4",
    "exaone_moe": "sparse_families.exaone_moe",
    "falcon": "bloom.parse_falcon",
    "flex_olmo": "sparse_families.flex_olmo",
    "flint": "sparse_families.flint",
    "gemma": "gemma.parse_gemma",
    "gemma2": "gemma.parse_gemma2",
    "gemma3_text": "gemma.parse_gemma3",
    "gemma3n_text": "gemma3n.parse_gemma3n",
    "gemma4_text": "gemma4.parse_gemma4",
    "gemma4_unified_text": "gemma4.parse_gemma4_unified",
    "git": "one_of_a_kind.GIT",
    "glm": "glm.parse_glm",
    "glm4": "glm.parse_glm4",
    "glm4_moe": "sparse_families.glm4_moe",
    "glm4_moe_lite": "deepseek.glm4_moe_lite",
    "glm_moe_dsa": "deepseek.glm_moe_dsa",
    "gpt2": "gpt.parse_gpt2",
    "gpt_bigcode": "gpt.parse_gpt_bigcode",
    "gpt_neo": "gpt_like.GPT_NEO",
    "gpt_neox": "gpt.parse_gpt_neox",
    "gpt_neox_japanese": "one_of_a_kind.parse_gpt_neox_japanese",
    "gpt_oss": "mixtral.parse_gpt_oss",
    "gptj": "gpt.parse_gptj",
    "granite": "llama.GRANITE",
    "granite_swa": "windowed.GRANITE_SWA",
    "granitemoe": "sparse_families.granitemoe",
    "granitemoe_swa": "sparse_families.granitemoe_swa",
    "granitemoeshared": "sparse_families.granitemoeshared",
    "helium": "llama_like.HELIUM",
    "hrm_text": "hrm.parse_hrm_text",
    "hunyuan_v1_dense": "llama_like.HUNYUAN",
    "hunyuan_v1_moe": "sparse_families.hunyuan_v1_moe",
    "hy_v3": "sparse_families.hy_v3",
    "hy_v4": "deepseek_v4.hy_v4",
    "hyperclovax": "llama_like.HYPERCLOVAX",
    "inkling_text": "inkling.inkling_text",
    "internlm": "remote_code.INTERNLM",
    "internlm2": "llama.INTERNLM2",
    "internlm3": "llama_like.INTERNLM3",
    "iquestcoder": "llama_like.IQUESTCODER",
    "jais2": "gpt_like.JAIS2",
    "jamba": "jamba.parse_jamba",
    "jetmoe": "sparse_attention.jetmoe",
    "kimi_k2": "deepseek.deepseek_v3",
    "kolibri1": "sparse_families.kolibri1",
    "laguna": "sparse_attention.laguna",
    "llama": "llama.LLAMA",
    "llama4_text": "llama4.parse_llama4",
    "longcat_flash": "deepseek.longcat_flash",
    "mamba": "mamba.parse_mamba",
    "mamba2": "mamba.parse_mamba2",
    "mellum": "sparse_families.mellum",
    "mimo": "remote_code.MIMO",
    "mimo_v2_flash": "mimo.parse_mimo_v2_flash",
    "minicpm": "remote_code.MINICPM",
    "minicpm3": "llama_like.MINICPM3",
    "minimax": "minimax.parse_minimax",
    "minimax_m2": "minimax.parse_minimax_m2",
    "minimax_m3_vl_text": "sparse_attention.minimax_m3",
    "minimax_text_01": "minimax.parse_minimax_text_01",
    "ministral": "windowed.MINISTRAL",
    "ministral3": "llama_like.MINISTRAL3",
    "mistral": "llama.MISTRAL",
    "mixtral": "mixtral.parse_mixtral",
    "mllama_text_model": "mllama.parse_mllama",
    "modernbert-decoder": "modernbert.parse_modernbert_decoder",
    "mpt": "bloom.parse_mpt",
    "nanochat": "llama_like.NANOCHAT",
    "nemotron": "nemotron.parse_nemotron",
    "nemotron_h": "nemotron.parse_nemotron_h",
    "olmo": "gpt_like.OLMO",
    "olmo2": "llama.OLMO2",
    "olmo3": "windowed.OLMO3",
    "olmoe": "mixtral.parse_olmoe",
    "openai-gpt": "gpt_like.OPENAI_GPT",
    "opt": "gpt.parse_opt",
    "orion": "remote_code.ORION",
    "persimmon": "gpt_like.PERSIMMON",
    "phi": "gpt.parse_phi",
    "phi-msft": "remote_code.PHI_MSFT",
    "phi3": "llama.PHI3",
    "phi4_multimodal": "llama_like.PHI4_MULTIMODAL",
    "phi4mm": "llama_like.PHI4_MULTIMODAL",
    "phimoe": "mixtral.parse_phimoe",
    "qwen": "remote_code.QWEN",
    "qwen2": "qwen.parse_qwen2",
    "qwen2_moe": "qwen.parse_qwen2_moe",
    "qwen3": "qwen.parse_qwen3",
    "qwen3_5_moe_text": "qwen3_next.parse_qwen3_5_moe",
    "qwen3_5_text": "qwen3_next.parse_qwen3_5",
    "qwen3_moe": "qwen.parse_qwen3_moe",
    "qwen3_next": "qwen3_next.parse_qwen3_next",
    "seed_oss": "llama_like.SEED_OSS",
    "smollm3": "llama.SMOLLM3",
    "solar": "remote_code.SOLAR",
    "solar_open": "sparse_families.solar_open",
    "stablelm": "gpt_like.STABLELM",
    "stablelm_epoch": "gpt_like.STABLELM",
    "starcoder2": "gpt.parse_starcoder2",
    "step3_text": "custom_experts.step3_text",
    "telechat": "remote_code.TELECHAT",
    "vaultgemma": "windowed.VAULTGEMMA",
    "xglm": "gpt_like.XGLM",
    "xverse": "llama.LLAMA",
    "youtu": "llama_like.YOUTU",
}

#: model_type of a multimodal config -> model_type of its language model, whose fields are in `text_config`.
MULTIMODAL: dict[str, str] = {
    "cohere_compass": "cohere_compass_text",
    "dots3_note": "dots3_note_text",
    "emu3": "emu3_text_model",
    "fuyu": "persimmon",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "got_ocr2": "qwen2",
    "kimi_vl": "deepseek_v3",
    "llama4": "llama4_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "step3_vl": "step3_text",
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
