"""`--branches METHOD,...`: an answer whose parts are written at once, each as a sequence of its own."""

from __future__ import annotations

from functools import partial

from llmviewer.techniques import methods
from llmviewer.techniques.technique import Technique

TECHNIQUE = Technique(
    name="branches",
    kind="branches",
    summary="Parts of an answer that do not depend on each other are written at once, as sequences beside each other; "
    "the methods below say how.",
    parameters={
        "METHOD": "how they come about, then its own parameters: skeleton or apar",
    },
    formula="passes = o - 1 + ceil((output - o) / branches) for an outline of o tokens; batch x branches sequences in "
    "each of the later ones; as many tokens as without",
    source="survey arXiv 2402.16363, section 4.2; Skeleton-of-Thought arXiv 2307.15337; APAR arXiv 2401.06761",
    example="llmviewer analyze llama-2-7b --hardware a100-sxm --input-len 16 --output-len 256 "
    "--branches skeleton,outline=36,points=6,prompt=45",
    make=partial(methods.make, "branches"),
)
