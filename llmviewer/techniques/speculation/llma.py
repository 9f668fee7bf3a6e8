"""`--speculative llma`: spans copied from a reference (a retrieved document or earlier answer) are draft tokens."""

from __future__ import annotations

from llmviewer.techniques.speculation.draft_options import ACCEPTANCE_HELP, TOKENS_HELP
from llmviewer.techniques.speculation.ngram import lookup_method
from llmviewer.techniques.technique import Technique

TECHNIQUE = Technique(
    name="llma",
    kind="speculation",
    summary="Draft tokens are copied from a reference text, after an n-gram that also occurs in the output; no draft "
    "model.",
    parameters={
        "tokens": f"{TOKENS_HELP} (default: 20)",
        "acceptance": ACCEPTANCE_HELP,
        "match": "share of passes with a match (default: 1)",
        "lookup_us": "search time on the host [µs] (default: 0)",
    },
    formula="time per token = (verification of 1 + match k tokens + lookup) / E; E = 1 + match (a_1 + a_1 a_2 + ...)",
    source="LLMA arXiv 2304.04487; https://github.com/microsoft/LMOps, llma (20 tokens after a match of 1 by default)",
    example="llmviewer analyze llama-7b --hardware v100 --speculative llma,tokens=20,acceptance=0.9,match=0.5",
    make=lookup_method("llma", 20.0, ""),
)
