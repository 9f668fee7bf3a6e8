"""`--speculative llma`: spans of a reference, a retrieved document or an earlier answer, are copied and verified."""

from __future__ import annotations

from llmviewer.schemes.ngram import copying
from llmviewer.technique import Technique

TECHNIQUE = Technique(
    name="llma",
    kind="speculation",
    summary="After an n-gram that a reference has as well, the tokens that follow it there are the draft; no draft "
    "model. acceptance=RATE|A/B/C|PRESET[,tokens=20|best: copied][,match=1: share of passes with a match]"
    "[,lookup_us=0: search on the host]",
    formula="time per token = (verification of 1 + match k tokens + lookup) / E; E = 1 + match (a_1 + a_1 a_2 + ...)",
    source="LLMA arXiv 2304.04487; https://github.com/microsoft/LMOps, llma (20 tokens after a match of 1 by default)",
    example="llmviewer analyze llama-7b --hardware v100 --speculative llma,tokens=20,acceptance=0.9,match=0.5",
    make=copying("llma", 20.0, ""),
)
