"""Rounds whose number of draft tokens adapts: drafting ends once a confidence threshold or a classifier says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from llmviewer.core.errors import UserError, quoted
from llmviewer.serving.generation import Draft, Generation, PassShape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.verification import round_facts

#: Help text of the parameter.
ADAPTIVE_HELP = (
    "probabilities that drafting goes on after a token that the target will accept, and after one that it will reject: "
    "0.95/0.3; 1/0 for an oracle; tokens is then the most (default: a fixed number)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """How well a draft model's confidence tells right from wrong tokens.

    right, wrong: probability that it drafts another token after one that the target accepts, or one that it rejects (or
    that follows a rejected one).
    """

    right: float
    wrong: float


def read_stopping(where: str, given: Mapping[str, str]) -> Stopping | None:
    """Parse `adaptive=0.95/0.3`; None if it is not given.  where: the option, for error messages."""
    text = given.get("adaptive")
    if text is None:
        return None
    try:
        right, wrong = (float(part) for part in text.split("/"))
    except ValueError:
        right, wrong = -1.0, -1.0
    if not 0.0 <= wrong <= right <= 1.0:
        raise UserError(
            f"{where}: adaptive is {quoted(text)}; allowed: two probabilities from 0 to 1, of going on after a right "
            "and after a wrong token, the second not above the first: 0.95/0.3"
        )
    return Stopping(right=right, wrong=wrong)


def adaptive_round(draft: Draft, tokens: float, accepted: Acceptance, stopping: Stopping) -> Generation:
    """A round of at most `tokens` draft tokens; the target verifies as many as were drafted.

    With right tokens only, i draft tokens are followed by another pass with r_i = r_(i-1) a_i right, with a wrong one
    among them with w_i = (r_(i-1) (1 - a_i) + w_(i-1)) wrong; pass i + 1 runs with r_i + w_i.  All passes: their sum;
    expected tokens: 1 + sum of r_(i-1) a_i; pairs: 1 + sum of (i + 1)(r_(i-1) + w_(i-1)).  One pass over the mean
    number of tokens replaces passes over each number.  Source: Kangaroo arXiv 2404.18911, DISCO arXiv 2405.04304; their
    code keeps the token that ends a round.
    """
    rates = np.array([accepted.at(position) for position in range(1, int(tokens) + 1)])
    right = np.cumprod([1.0, *(rates[:-1] * stopping.right)])  # all tokens before a pass are right
    wrong = np.zeros_like(right)
    for at in range(1, len(right)):
        wrong[at] = (right[at - 1] * (1.0 - rates[at - 1]) + wrong[at - 1]) * stopping.wrong
    runs, number = right + wrong, np.arange(1.0, len(right) + 1.0)
    passes = float(runs.sum())
    ahead = float((runs * (number - 1.0)).sum()) / passes
    pairs = 1.0 + float((runs * (number + 1.0)).sum())
    known = f"{stopping.right:g}/{stopping.wrong:g}"
    return Generation(
        shape=PassShape(new_tokens=passes + 1.0, logit_positions=passes + 1.0, attended_new_pairs=pairs),
        tokens=1.0 + float((right * rates).sum()),
        drafts=(replace(draft, passes=passes, shape=PassShape(ahead=ahead)),),
        facts={**round_facts(draft.name, passes, accepted), "most_tokens": tokens, "adaptive": known},
        min_spare_tokens=tokens,
    )
