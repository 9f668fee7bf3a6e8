"""model_type -> parser: Config x Dtype -> Model.  A new architecture is one parser file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from llmviewer.dtypes import Dtype
from llmviewer.models import (
    bloom,
    cohere,
    dbrx,
    deepseek,
    falcon,
    gemma,
    glm,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    llama4,
    mistral,
    nemotron,
    olmo,
    opt,
    phi,
    qwen,
    smollm3,
    starcoder2,
)
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.parts import text_of

Parser: TypeAlias = Callable[[Config, Dtype], Model]

ARCHITECTURES: dict[str, Parser] = {
    "baichuan": llama.parse_baichuan,
    "bloom": bloom.parse_bloom,
    "chatglm": glm.parse_chatglm,
    "cohere": cohere.parse_cohere,
    "cohere2": cohere.parse_cohere2,
    "dbrx": dbrx.parse,
    "deepseek_v2": deepseek.parse_v2,
    "deepseek_v3": deepseek.parse_v3,
    "falcon": falcon.parse,
    "gemma": gemma.parse_gemma,
    "gemma2": gemma.parse_gemma2,
    "gemma3": text_of(gemma.parse_gemma3),
    "gemma3_text": gemma.parse_gemma3,
    "glm": glm.parse_glm,
    "glm4": glm.parse_glm4,
    "glm4_moe": glm.parse_glm4_moe,
    "gpt2": gpt2.parse_gpt2,
    "gpt_bigcode": gpt2.parse_gpt_bigcode,
    "gpt_neox": gpt_neox.parse_gpt_neox,
    "gpt_oss": gpt_oss.parse,
    "gptj": gpt_neox.parse_gptj,
    "granite": granite.parse,
    "internlm2": llama.parse_internlm2,
    "kimi_k2": deepseek.parse_v3,
    "llama": llama.parse,
    "llama4": text_of(llama4.parse),
    "llama4_text": llama4.parse,
    "mistral": mistral.parse_mistral,
    "mistral3": text_of(mistral.parse_mistral),
    "mixtral": mistral.parse_mixtral,
    "mpt": bloom.parse_mpt,
    "nemotron": nemotron.parse,
    "olmo2": olmo.parse_olmo2,
    "olmoe": olmo.parse_olmoe,
    "opt": opt.parse,
    "phi": phi.parse_phi,
    "phi3": phi.parse_phi3,
    "phimoe": phi.parse_phimoe,
    "qwen2": qwen.parse_qwen2,
    "qwen2_moe": qwen.parse_qwen2_moe,
    "qwen3": qwen.parse_qwen3,
    "qwen3_moe": qwen.parse_qwen3_moe,
    "smollm3": smollm3.parse,
    "starcoder2": starcoder2.parse,
}
