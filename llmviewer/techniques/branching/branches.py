"""`--branches METHOD,...`: parts of an answer are generated in parallel, each as its own sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.workload import whole_tokens
from llmviewer.language.grammar import Choice, Number
from llmviewer.serving.branches import Branches
from llmviewer.serving.generation import AUTOREGRESSIVE, Generation
from llmviewer.techniques.technique import Change, Whole, change_generation, technique


def with_branches(title: str, branches: Branches, facts: Mapping[str, float | str]) -> Change:
    """The change to branched generation, listed as `title`; raises UserError for incompatible options.

    With speculation every branch drafts and verifies by itself: a pass verifies the draft tokens of all branches, and
    the passes of a branch fall by its tokens per round (APAR with Medusa, arXiv 2401.06761).
    """

    def branched(generation: Generation) -> Generation:
        known = {**generation.facts, "branches": branches.points, **facts}
        return replace(generation, branches=branches, facts=known)

    def change(system: System) -> System:
        _check(title, branches, system)
        if system.scheme is not None:
            return replace(system, scheme=system.scheme.changed(title, branched)).listing(title)
        alone = "branches prefill prompts of their own while others decode" if branches.prefilled else ""
        return change_generation(title, lambda _: branched(AUTOREGRESSIVE), alone=alone)(system)

    return change


def _check(title: str, branches: Branches, system: System) -> None:
    cache = system.kv_cache
    if branches.shared and cache.reserves:
        raise UserError(f"{title}: branches cannot share a prefix in contiguously reserved KV cache (--kv-reserve)")
    if branches.shared and cache.evicts:
        raise UserError(f"{title}: branches evict different tokens and cannot share a prefix (--kv-evict)")
    if not branches.shared and cache.hit_rate:
        raise UserError(f"{title}: branches also hit the --prefix-cache; add shared=on")
    if system.scheme is not None and system.scheme.alone:
        raise UserError(f"{title} and {system.scheme.name}: {system.scheme.alone}; remove one of them")
    if system.scheme is not None and branches.prefilled:
        raise UserError(
            f"{title} and {system.scheme.name}: prompts of branches would be prefilled between rounds, which is not "
            "modelled; remove one of them, or use --branches apar, whose branches have no prompts"
        )


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


@technique(
    "skeleton",
    where="--branches skeleton",
    kind="branches",
    formula="o - 1 passes of the batch; prefill of batch x points prompts of input + o + prompt tokens, or prompt + 1 "
    "tokens each if shared, which yields the points' first tokens; ceil((output - o) / points) - 1 passes of batch x "
    "points; final cache batch x points (input + output of the longest branch), the common prefix once if shared",
    source="Skeleton-of-Thought arXiv 2307.15337, appendices E, F and H; "
    "https://github.com/imagination-research/sot, sot/schedulers/outline_batch_scheduler.py",
    example="llama-2-7b --hardware a100-sxm --input-len 171 --output-len 256 "
    "--branches skeleton,outline=36,points=6,prompt=45,shared=on",
)
def skeleton_option(
    *,
    outline: Annotated[float, Whole("tokens of the outline; shorter answers are plain decoding", 1, 2.0**20)],
    points: Annotated[float, Whole("points generated in parallel; outline and points add up to output_len", 1, 1024)],
    prompt: Annotated[
        float, Whole("prompt tokens of each point in addition to question and outline", 0, 2.0**20)
    ] = 0.0,
    shared: Annotated[str, Choice("on: question and outline are prefix-cache hits", ("off", "on"))] = "off",
    typed: str,
) -> Change:
    """Skeleton-of-Thought: generates an outline, then all of its points in parallel."""
    facts: dict[str, float | str] = {"outline_tokens": outline, "branch_prompt_tokens": prompt, "shared": shared}
    branches = replace(skeleton(outline, points, prompt), shared=shared == "on")
    return with_branches(f"branches(skeleton,{typed})", branches, facts)


def apar(branches: float, parallel: float = 1.0) -> Branches:
    """Branches of APAR: `branches` sequences write the share `parallel` of the answer's tokens, one writes the rest.

    branches: a mean, possibly fractional.  A branch continues from the KV cache of its parent: nothing is prefilled
    again, and the common prefix is stored once.  All forks are placed after the sequential tokens and branches have
    equal length; this keeps the number of passes, and contexts are at least as long as in a tree of forks.  Not
    modelled: tokens that mark forks, and freeing the cache of branches that end early.  Source: arXiv 2401.06761.
    """
    return Branches(outline=partial(_sequential_tokens, parallel), points=branches)


def _sequential_tokens(parallel: float, output: Array) -> Array:
    """Tokens written sequentially, a whole number; at least the first one, from the prompt's prefill."""
    return np.maximum(output - whole_tokens(output * parallel), 1.0)


@technique(
    "apar",
    where="--branches apar",
    kind="branches",
    formula="s = output - floor(parallel output) sequential tokens, then ceil((output - s) / branches) passes of "
    "batch x branches; no second prefill; cache of input + output tokens per request, as in plain decoding; with "
    "--speculative each pass verifies the draft tokens of every branch, and their number falls by the tokens per round",
    source="APAR arXiv 2401.06761; https://github.com/THUDM/APAR",
    example="llama-2-7b --hardware a100-sxm --input-len 64 --output-len 512 --branches apar,branches=3,parallel=0.75",
)
def apar_option(
    branches: Annotated[float, Number("mean number of branches", 1, 1024)],
    *,
    parallel: Annotated[float, Number("share of the output tokens written in branches", 0.0, 1.0)] = 1.0,
    typed: str,
) -> Change:
    """APAR: a fine-tuned model forks its answer; branches share the KV cache before the fork and decode in parallel,
    also with speculation (APAR with Medusa).
    """
    return with_branches(f"branches(apar,{typed})", apar(branches, parallel), {"parallel": parallel})
