"""Limits of encoders and encoder-decoders: bidirectional passes over whole inputs, which nothing cuts or reuses."""

from __future__ import annotations

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request, decode
from llmviewer.models.model import Model
from llmviewer.serving.batching import STATIC
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft

#: Beginnings of the names of techniques that leave out layers by their place among the others.
DEPTH_TECHNIQUES = ("skip_layers", "prune(depth", "offload", "flexgen")


def check_encoder(model: Model, system: System, request: Request, token_budget: float) -> None:
    """Raise UserError if an encoder or a diffusion transformer is asked for what needs a cache or a decode step."""
    if model.encoder is not None:
        _check_encoder_decoder(model, system, token_budget)
    for one in system.drafters:
        _check_draft(model, one.draft)
    if not model.is_encoder:
        return
    wrong = (
        (np.any(np.asarray(request.output_len) > 1), "output length above 1; allowed: --output-len 1"),
        (system.batching is not STATIC, "continuous batching; allowed: a static batch"),
        (bool(system.drafters) or system.generation is not AUTOREGRESSIVE, "speculation or branches; allowed: none"),
        (system.kv_cache.hit_rate > 0.0 or system.kv_cache.evicts, "prefix hits and eviction; allowed: none"),
        (
            np.any(np.asarray(request.input_len) > token_budget),
            f"inputs in chunks of {token_budget:g} tokens; allowed: inputs of at most --max-num-batched-tokens",
        ),
        (system.parallelism.context > 1, "context parallelism; allowed: --context-parallel-size 1"),
        (
            system.applies("early_exit") and not _has_logits(model),
            "early exit without rows of logits; allowed: --skip-layers",
        ),
    )
    for asked, what in wrong:
        if asked:
            raise UserError(f"{model.name} runs one bidirectional pass, no decode, no KV cache; not possible: {what}")


def _has_logits(model: Model) -> bool:
    """Whether the head of a model is a classifier of rows, not that of an embedder or a diffusion transformer."""
    return any(op.name == "lm_head" for op in model.graph(decode(1.0, 0.0)).blocks[-1].operators)


def _check_draft(model: Model, draft: Draft) -> None:
    """Raise UserError for a draft model that reads another kind of input than its target."""
    if draft.model.encoder is None and model.encoder is not None and draft.caches:
        raise UserError(
            f"{draft.name} has no encoder for the input of {model.name}; allowed: an encoder-decoder as draft model, "
            "heads without a cache (medusa, speculator, blockwise), copied tokens (ngram, llma)"
        )
    if draft.model.encoder is not None and model.encoder is None:
        raise UserError(f"{draft.name} is an encoder-decoder, which cannot draft for {model.name}; allowed: decoders")


def _check_encoder_decoder(model: Model, system: System, token_budget: float) -> None:
    """Raise UserError for what the encoder's input or the two halves of the model do not allow."""
    own = system.parallelism
    names = [applied.name for applied in system.passes]
    depth = next((name for name in names if name.startswith(DEPTH_TECHNIQUES)), "")
    wrong = (
        (system.batching is not STATIC, "batching other than static; allowed: --batching static"),
        (system.generation.branches is not None, "branches; allowed: none"),
        (system.kv_cache.hit_rate > 0.0 or system.kv_cache.evicts, "prefix hits and eviction; allowed: none"),
        (np.isfinite(token_budget), "a token budget, which cuts prompts; allowed: whole inputs"),
        (own.pipeline > 1 or own.context > 1, "pipeline or context parallelism; allowed: tensor and data parallelism"),
        (own.sequence or system.spatial, "sequence parallelism and spatial systems; allowed: tensor parallelism"),
        (bool(depth), f"{depth}, which takes layers as one stack; allowed: other techniques"),
    )
    for asked, what in wrong:
        if asked:
            raise UserError(f"{model.name} is an encoder-decoder; not possible with it: {what}")
