"""`--branches skeleton`: Skeleton-of-Thought, an outline and then all of its points in parallel."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.errors import unknown
from llmviewer.serving.branches import Branches
from llmviewer.techniques.branching.change import with_branches
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_parameters

WHERE = "--branches skeleton"
OUTLINE = Parameter(name="outline", low=1, high=2.0**20, whole=True)
POINTS = Parameter(name="points", low=1, high=1024, whole=True)
PROMPT = Parameter(name="prompt", default=0.0, high=2.0**20, whole=True)
SHARED = ("off", "on")


def skeleton(outline: float, points: float, prompt: float = 0.0) -> Branches:
    """Branches of an outline: `points` sequences that read question, outline and `prompt` tokens of a template.

    The outline's template is part of input_len (171 tokens with a question of 13).  Every point's request is prefilled
    from its first token, as through an API.  If `shared`, question and outline are prefix-cache hits (future work in
    the paper; its measurements prefill them once more for all points together, a case in between).
    Source: arXiv 2307.15337, section 2 and appendix H, table 7.
    """
    return Branches(outline=partial(_outline_tokens, outline), points=points, prompt=prompt, shared=False)


def _outline_tokens(tokens: float, output: Array) -> Array:
    return np.minimum(output, tokens)


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("outline", "points", "prompt", "shared")) if text else {}
    outline, points, prompt = (parameter.value(given, WHERE) for parameter in (OUTLINE, POINTS, PROMPT))
    shared = given.get("shared", "off")
    if shared not in SHARED:
        raise unknown(f"value of shared in {WHERE}", shared, SHARED)
    facts: dict[str, float | str] = {"outline_tokens": outline, "branch_prompt_tokens": prompt, "shared": shared}
    branches = replace(skeleton(outline, points, prompt), shared=shared == "on")
    return with_branches(f"branches(skeleton,{text})", branches, facts)


TECHNIQUE = Technique(
    name="skeleton",
    kind="branches",
    summary="Skeleton-of-Thought: generates an outline, then all of its points in parallel.",
    parameters={
        "outline": "tokens of the outline; shorter answers are plain decoding",
        "points": "points generated in parallel; outline and points add up to output_len",
        "prompt": "prompt tokens of each point in addition to question and outline (default: 0)",
        "shared": "on: question and outline are prefix-cache hits (default: off)",
    },
    formula="o - 1 passes of the batch; prefill of batch x points prompts of input + o + prompt tokens, or prompt + 1 "
    "tokens each if shared, which yields the points' first tokens; ceil((output - o) / points) - 1 passes of batch x "
    "points; final cache batch x points (input + output of the longest branch), the common prefix once if shared",
    source="Skeleton-of-Thought arXiv 2307.15337, appendices E, F and H; "
    "https://github.com/imagination-research/sot, sot/schedulers/outline_batch_scheduler.py",
    example="llmviewer analyze llama-2-7b --hardware a100-sxm --input-len 171 --output-len 256 "
    "--branches skeleton,outline=36,points=6,prompt=45,shared=on",
    make=_make,
)
