"""Limits of encoders: one bidirectional pass over whole inputs; nothing is cached, cut or decoded."""

from __future__ import annotations

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request
from llmviewer.models.model import Model
from llmviewer.serving.batching import STATIC


def check_encoder(model: Model, system: System, request: Request, token_budget: float) -> None:
    """Raise UserError if an encoder is asked for what needs a cache or a decode step."""
    if not model.is_encoder:
        return
    wrong = (
        (np.any(np.asarray(request.output_len) > 1), "output length above 1; allowed: --output-len 1"),
        (system.batching is not STATIC, "continuous batching; allowed: a static batch"),
        (bool(system.drafters), "speculative decoding; allowed: none"),
        (system.kv_cache.hit_rate > 0.0 or system.kv_cache.kept < 1.0, "prefix hits and eviction; allowed: none"),
        (np.isfinite(token_budget), "chunked prefill; allowed: whole inputs"),
    )
    for asked, what in wrong:
        if asked:
            raise UserError(f"{model.name} is an encoder: one pass, no decode, no KV cache; not possible: {what}")
