"""`--branches apar`: a model that forks its own answer where the parts do not need each other."""

from __future__ import annotations

from functools import partial

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.workload import whole_tokens
from llmviewer.serving.branches import Branches
from llmviewer.techniques.branching.change import branching
from llmviewer.techniques.technique import Change, Parameter, Technique, numbers

WHERE = "--branches apar"
BRANCHES = Parameter(name="branches", low=1, high=1024)
PARALLEL = Parameter(name="parallel", default=1.0, low=0.0, high=1.0)


def apar(branches: float, parallel: float = 1.0) -> Branches:
    """The share `parallel` of the answer's tokens is written by `branches` sequences at once, the rest by one.

    branches: their mean where there are several, so it may be no whole number.  A branch goes on from the cache of the
    one that it forks from; nothing is prefilled again, and what they have in common is stored once.  All forks are put
    behind the tokens written one after another, and branches are equally long: that keeps the number of passes, and
    makes contexts no shorter than those of a tree of forks.  Left out: the tokens that mark forks, and that a branch
    which ends early frees its cache.  Source: arXiv 2401.06761.
    """
    return Branches(outline=partial(_alone, parallel), points=branches)


def _alone(parallel: float, output: Array) -> Array:
    """Whole tokens written by one sequence: the first at least, which the prompt's prefill yields."""
    return np.maximum(output - whole_tokens(output * parallel), 1.0)


def _make(text: str) -> Change:
    given = numbers(WHERE, text, (BRANCHES, PARALLEL))
    return branching(f"branches(apar,{text})", apar(**given), {"parallel": given["parallel"]})


TECHNIQUE = Technique(
    name="apar",
    kind="branches",
    summary="APAR: a model tuned to fork its answer; branches share the cache before the fork and decode at once.",
    parameters={
        "branches": "how many there are, in the mean",
        "parallel": "share of the tokens that they write; 1 unless said",
    },
    formula="s = output - floor(parallel output) tokens one after another, then ceil((output - s) / branches) passes "
    "of batch x branches; no second prefill; cache of input + output tokens per request, as without",
    source="APAR arXiv 2401.06761; https://github.com/THUDM/APAR",
    example="llmviewer analyze llama-2-7b --hardware a100-sxm --input-len 64 --output-len 512 "
    "--branches apar,branches=3,parallel=0.75",
    make=_make,
)
