"""model_type -> parser: Config x Dtype -> Model.  A new architecture is one parser file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from llmviewer.dtypes import Dtype
from llmviewer.models import llama, qwen
from llmviewer.models.config import Config
from llmviewer.models.model import Model

Parser: TypeAlias = Callable[[Config, Dtype], Model]

ARCHITECTURES: dict[str, Parser] = {
    "llama": llama.parse,
    "qwen2": qwen.parse_qwen2,
    "qwen2_moe": qwen.parse_qwen2_moe,
    "qwen3": qwen.parse_qwen3,
    "qwen3_moe": qwen.parse_qwen3_moe,
}
