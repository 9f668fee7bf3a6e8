"""`--branches METHOD,...`: parts of an answer are generated in parallel, each as its own sequence."""

from __future__ import annotations

from functools import partial

from llmviewer.techniques import methods
from llmviewer.techniques.technique import Technique

TECHNIQUE = Technique(
    name="branches",
    kind="branches",
    summary="Generates independent parts of an answer in parallel, each as its own sequence, by one of the methods "
    "below.",
    parameters={
        "METHOD": "skeleton or apar, followed by its own parameters",
    },
    formula="passes = o - 1 + ceil((output - o) / branches) for an outline of o tokens; batch x branches sequences in "
    "each pass after the outline; same number of tokens as plain decoding",
    source="survey arXiv 2402.16363, section 4.2; Skeleton-of-Thought arXiv 2307.15337; APAR arXiv 2401.06761",
    example="llmviewer analyze llama-2-7b --hardware a100-sxm --input-len 16 --output-len 256 "
    "--branches skeleton,outline=36,points=6,prompt=45",
    make=partial(methods.make, "branches"),
)
