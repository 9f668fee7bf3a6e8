"""model_type -> parser: Config x Dtype -> Model.  A new architecture is one parser file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from llmviewer.dtypes import Dtype
from llmviewer.models import deepseek, gpt_oss, llama, qwen
from llmviewer.models.config import Config
from llmviewer.models.model import Model

Parser: TypeAlias = Callable[[Config, Dtype], Model]

ARCHITECTURES: dict[str, Parser] = {
    "deepseek_v2": deepseek.parse_v2,
    "deepseek_v3": deepseek.parse_v3,
    "gpt_oss": gpt_oss.parse,
    "kimi_k2": deepseek.parse_v3,
    "llama": llama.parse,
    "qwen2": qwen.parse_qwen2,
    "qwen2_moe": qwen.parse_qwen2_moe,
    "qwen3": qwen.parse_qwen3,
    "qwen3_moe": qwen.parse_qwen3_moe,
}
