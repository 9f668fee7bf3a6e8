"""`--speculative llma`: spans of a reference, a retrieved document or an earlier answer, are copied and verified."""

from __future__ import annotations

from llmviewer.techniques.speculation.draft_options import ACCEPTANCE_HELP, TOKENS_HELP
from llmviewer.techniques.speculation.ngram import lookup_method
from llmviewer.techniques.technique import Technique

TECHNIQUE = Technique(
    name="llma",
    kind="speculation",
    summary="After an n-gram that a reference has as well, the tokens that follow it there are the draft; no "
    "draft model.",
    parameters={
        "tokens": f"{TOKENS_HELP}; 20 unless said",
        "acceptance": ACCEPTANCE_HELP,
        "match": "share of the passes that find any; 1 unless said",
        "lookup_us": "search on the host [µs]; 0 unless said",
    },
    formula="time per token = (verification of 1 + match k tokens + lookup) / E; E = 1 + match (a_1 + a_1 a_2 + ...)",
    source="LLMA arXiv 2304.04487; https://github.com/microsoft/LMOps, llma (20 tokens after a match of 1 by default)",
    example="llmviewer analyze llama-7b --hardware v100 --speculative llma,tokens=20,acceptance=0.9,match=0.5",
    make=lookup_method("llma", 20.0, ""),
)
