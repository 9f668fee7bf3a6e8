"""`--speculative METHOD,...`: several tokens from one pass of the model, because something cheaper has guessed them."""

from __future__ import annotations

from functools import partial

from llmviewer.techniques import methods
from llmviewer.techniques.technique import Technique

TECHNIQUE = Technique(
    name="speculative",
    kind="speculation",
    summary="Something cheap guesses tokens (the methods below say what), one pass of the model verifies them.",
    parameters={
        "METHOD": "what guesses, then its own parameters: one of the methods listed here",
        "draft": "without a method before it: name of a smaller model, as the method draft",
    },
    formula="time per token = (verification + drafting) / expected tokens of a round; verification computes all "
    "drafted tokens and the one before them, and is never free",
    source="survey arXiv 2402.16363, section 4.2; Leviathan et al. arXiv 2211.17192",
    example="llmviewer analyze llama-2-70b --hardware h100 -tp 4 "
    "--speculative draft=tinyllama-1.1b,tokens=4,acceptance=0.7",
    make=partial(methods.make, "speculative"),
)
