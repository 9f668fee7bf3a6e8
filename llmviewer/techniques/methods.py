"""The registry of methods: options whose first word selects one, such as `--batching chunked,...`."""

from __future__ import annotations

from importlib import import_module

from llmviewer.core.errors import unknown
from llmviewer.techniques.technique import Change, Technique

#: Option name -> method -> its entry: module within `llmviewer.techniques`, or `module:NAME`.
METHODS: dict[str, dict[str, str]] = {
    "branches": {
        "skeleton": "branching.branches:skeleton_option",
        "apar": "branching.branches:apar_option",
    },
    "batching": {
        "static": "batching.batching:static",
        "continuous": "batching.batching:continuous",
        "chunked": "batching.chunked:chunked",
        "disaggregated": "batching.disaggregated:disaggregated",
    },
    "speculative": {
        "draft": "speculation.drafts:DRAFT",
        "tree": "speculation.drafts:tree_rounds",
        "fallback": "speculation.drafts:fallback_rounds",
        "ngram": "speculation.copied:ngram",
        "llma": "speculation.copied:llma",
        "copy": "speculation.copied:copy",
        "rest": "speculation.copied:rest",
        "lookahead": "speculation.guessed:lookahead",
        "jacobi": "speculation.guessed:jacobi",
        "diffusion": "speculation.guessed:diffusion",
        "nat": "speculation.guessed:non_autoregressive",
        "self": "speculation.drafts:parts_skipped",
        "medusa": "speculation.heads:medusa",
        "eagle": "speculation.features:eagle",
        "eagle3": "speculation.features:eagle3",
        "mtp": "speculation.features:mtp",
        "speculator": "speculation.heads:speculator",
        "blockwise": "speculation.heads:blockwise",
        "pass": "speculation.guessed:look_ahead_tokens",
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
