"""The registry of methods: options whose first word says which one, and its module; one line each."""

from __future__ import annotations

from importlib import import_module

from llmviewer.errors import unknown
from llmviewer.technique import Change, Technique

#: option -> method -> module of `llmviewer.schemes`.
METHODS: dict[str, dict[str, str]] = {
    "branches": {
        "skeleton": "skeleton",
        "apar": "apar",
    },
    "batching": {
        "static": "static_batch",
        "continuous": "continuous",
        "chunked": "chunked",
        "disaggregated": "disaggregated",
    },
    "speculative": {
        "draft": "draft_model",
        "tree": "tree_draft",
        "fallback": "fallback",
        "ngram": "ngram",
        "llma": "llma",
        "rest": "rest",
        "lookahead": "lookahead",
        "jacobi": "jacobi",
        "self": "self_speculative",
        "medusa": "medusa",
        "eagle": "eagle",
        "eagle3": "eagle3",
        "mtp": "mtp",
        "speculator": "speculator",
        "blockwise": "blockwise",
        "pass": "pass_embeddings",
    },
}


def make(option: str, text: str) -> Change:
    """The change of the method that the first word of an option's text names; `draft=NAME,...` needs no word before."""
    methods = METHODS[option]
    word, _, rest = text.partition(",")
    name, equals, _ = (piece.strip() for piece in word.partition("="))
    if name not in methods:
        hint = "a smaller model: draft=NAME,tokens=4,acceptance=0.8" if "draft" in methods else ""
        raise unknown(f"method of --{option.replace('_', '-')}", name, methods, hint=hint)
    found: Technique = import_module(f"llmviewer.schemes.{methods[name]}").TECHNIQUE
    return found.make(text if equals else rest)
