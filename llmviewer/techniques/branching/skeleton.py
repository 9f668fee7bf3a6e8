"""`--branches skeleton`: Skeleton-of-Thought, an outline and then all of its points at once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.errors import unknown
from llmviewer.serving.branches import Branches
from llmviewer.techniques.branching.change import branching
from llmviewer.techniques.technique import Change, Parameter, Technique, named

WHERE = "--branches skeleton"
OUTLINE = Parameter(name="outline", low=1, high=2.0**20, whole=True)
POINTS = Parameter(name="points", low=1, high=1024, whole=True)
PROMPT = Parameter(name="prompt", default=0.0, high=2.0**20, whole=True)
SHARED = ("off", "on")


def skeleton(outline: float, points: float, prompt: float = 0.0) -> Branches:
    """The branches of an outline: `points` sequences that read question, outline and `prompt` tokens of a template.

    The template of the outline itself is part of input_len (171 tokens with the question, where the question alone has
    13).  Every point's request is prefilled from its first token, as by an API; where they are `shared`, question and
    outline are found in the cache, as with any prefix cache (for the paper future work; what it measured prefills them
    once more for all points together, which lies in between).  Source: arXiv 2307.15337, section 2 and appendix H,
    table 7.
    """
    return Branches(outline=partial(_first, outline), points=points, prompt=prompt, shared=False)


def _first(tokens: float, output: Array) -> Array:
    return np.minimum(output, tokens)


def _make(text: str) -> Change:
    given = named(WHERE, text, ("outline", "points", "prompt", "shared")) if text else {}
    outline, points, prompt = (parameter.of(given, WHERE) for parameter in (OUTLINE, POINTS, PROMPT))
    shared = given.get("shared", "off")
    if shared not in SHARED:
        raise unknown(f"value of shared in {WHERE}", shared, SHARED)
    facts: dict[str, float | str] = {"outline_tokens": outline, "branch_prompt_tokens": prompt, "shared": shared}
    branches = replace(skeleton(outline, points, prompt), shared=shared == "on")
    return branching(f"branches(skeleton,{text})", branches, facts)


TECHNIQUE = Technique(
    name="skeleton",
    kind="branches",
    summary="Skeleton-of-Thought: an outline, then every point of it at once.",
    parameters={
        "outline": "tokens of the outline; answers no longer than that are plain decoding",
        "points": "how many points are written at once; outline and points make up output_len",
        "prompt": "tokens that each point reads besides question and outline; 0 unless said",
        "shared": "on: question and outline are found in the cache; off unless said",
    },
    formula="o - 1 passes of the batch; prefill of batch x points prompts of input + o + prompt tokens, or prompt + 1 "
    "of them where shared, which yields the points' first tokens; ceil((output - o) / points) - 1 passes of batch x "
    "points; cache at the end batch x points (input + output of the longest branch), the beginning once where shared",
    source="Skeleton-of-Thought arXiv 2307.15337, appendices E, F and H; "
    "https://github.com/imagination-research/sot, sot/schedulers/outline_batch_scheduler.py",
    example="llmviewer analyze llama-2-7b --hardware a100-sxm --input-len 171 --output-len 256 "
    "--branches skeleton,outline=36,points=6,prompt=45,shared=on",
    make=_make,
)
