"""The registry of methods: options whose first word selects one, such as `--batching chunked,...`."""

from __future__ import annotations

from importlib import import_module

from llmviewer.core.errors import unknown
from llmviewer.techniques.technique import Change, Technique

#: Option name -> method -> its entry: module within `llmviewer.techniques`, or `module:NAME`.
METHODS: dict[str, dict[str, str]] = {
    "branches": {
        "skeleton": "branching.skeleton",
        "apar": "branching.apar",
    },
    "batching": {
        "static": "batching.static_batch",
        "continuous": "batching.continuous",
        "chunked": "batching.chunked",
        "disaggregated": "batching.disaggregated",
    },
    "speculative": {
        "draft": "speculation.draft_model",
        "tree": "speculation.tree_draft",
        "fallback": "speculation.fallback",
        "ngram": "speculation.ngram",
        "llma": "speculation.llma",
        "copy": "speculation.copied_phrases",
        "rest": "speculation.rest",
        "lookahead": "speculation.lookahead",
        "jacobi": "speculation.jacobi",
        "diffusion": "speculation.diffusion",
        "nat": "speculation.non_autoregressive",
        "self": "speculation.self_speculative",
        "medusa": "speculation.medusa",
        "eagle": "speculation.eagle",
        "eagle3": "speculation.eagle3",
        "mtp": "speculation.mtp",
        "speculator": "speculation.speculator",
        "blockwise": "speculation.blockwise",
        "pass": "speculation.pass_embeddings",
    },
}


def make(option: str, text: str) -> Change:
    """The change made by the method that the first word of `text` names; `draft=NAME,...` needs no method name."""
    methods = METHODS[option]
    word, _, rest = text.partition(",")
    name, equals, _ = (piece.strip() for piece in word.partition("="))
    if name not in methods:
        hint = "a smaller model: draft=NAME,tokens=4,acceptance=0.8" if "draft" in methods else ""
        raise unknown(f"method of --{option.replace('_', '-')}", name, methods, hint=hint)
    module, _, attribute = methods[name].partition(":")
    technique: Technique = getattr(import_module(f"llmviewer.techniques.{module}"), attribute or "TECHNIQUE")
    return technique.make(text if equals else rest)
