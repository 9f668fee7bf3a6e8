"""`--speculative METHOD,...`: several tokens per pass of the target, drafted and verified, or decided together."""

from __future__ import annotations

from functools import partial

from llmviewer.techniques import methods
from llmviewer.techniques.technique import Technique

TECHNIQUE = Technique(
    name="speculative",
    kind="speculation",
    summary="Speculative and parallel decoding: one of the methods below drafts tokens that one pass of the target "
    "verifies, or decides several tokens at once.",
    parameters={
        "METHOD": "one of the methods listed here, followed by its own parameters",
        "draft": "short for the method draft: name of a smaller model",
    },
    formula="time per token = (verification + drafting) / expected tokens per round; verification computes all draft "
    "tokens and the one before them, and is never free",
    source="survey arXiv 2402.16363, section 4.2; Leviathan et al. arXiv 2211.17192",
    example="llmviewer analyze llama-2-70b --hardware h100 -tp 4 "
    "--speculative draft=tinyllama-1.1b,tokens=4,acceptance=0.7",
    make=partial(methods.make, "speculative"),
)
