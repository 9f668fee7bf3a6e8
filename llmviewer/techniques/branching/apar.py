"""`--branches apar`: a model that forks its own answer into independent parts."""

from __future__ import annotations

from functools import partial

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.workload import whole_tokens
from llmviewer.serving.branches import Branches
from llmviewer.techniques.branching.change import with_branches
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_numbers

WHERE = "--branches apar"
BRANCHES = Parameter(name="branches", low=1, high=1024)
PARALLEL = Parameter(name="parallel", default=1.0, low=0.0, high=1.0)


def apar(branches: float, parallel: float = 1.0) -> Branches:
    """Branches of APAR: `branches` sequences write the share `parallel` of the answer's tokens, one writes the rest.

    branches: a mean, possibly fractional.  A branch continues from the KV cache of its parent: nothing is prefilled
    again, and the common prefix is stored once.  All forks are placed after the sequential tokens and branches have
    equal length; this keeps the number of passes, and contexts are at least as long as in a tree of forks.  Not
    modelled: tokens that mark forks, and freeing the cache of branches that end early.  Source: arXiv 2401.06761.
    """
    return Branches(outline=partial(_outline_tokens, parallel), points=branches)


def _outline_tokens(parallel: float, output: Array) -> Array:
    """Tokens written sequentially, a whole number; at least the first one, from the prompt's prefill."""
    return np.maximum(output - whole_tokens(output * parallel), 1.0)


def _make(text: str) -> Change:
    given = parse_numbers(WHERE, text, (BRANCHES, PARALLEL))
    return with_branches(f"branches(apar,{text})", apar(**given), {"parallel": given["parallel"]})


TECHNIQUE = Technique(
    name="apar",
    kind="branches",
    summary="APAR: a fine-tuned model forks its answer; branches share the KV cache before the fork and decode "
    "in parallel, also with speculation (APAR with Medusa).",
    parameters={
        "branches": "mean number of branches",
        "parallel": "share of the output tokens written in branches (default: 1)",
    },
    formula="s = output - floor(parallel output) sequential tokens, then ceil((output - s) / branches) passes of "
    "batch x branches; no second prefill; cache of input + output tokens per request, as in plain decoding; with "
    "--speculative each pass verifies the draft tokens of every branch, and their number falls by the tokens per round",
    source="APAR arXiv 2401.06761; https://github.com/THUDM/APAR",
    example="llmviewer analyze llama-2-7b --hardware a100-sxm --input-len 64 --output-len 512 "
    "--branches apar,branches=3,parallel=0.75",
    make=_make,
)
