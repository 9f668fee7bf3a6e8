"""Verification passes of the target over draft tokens, in a chain or a tree, and facts about a round."""

from __future__ import annotations

from llmviewer.serving.generation import PassShape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.ranks import Ranks


def verification_pass(tokens: float) -> PassShape:
    """The pass over a chain of draft tokens and the token before them."""
    return PassShape(new_tokens=tokens + 1.0, logit_positions=tokens + 1.0)


def tree_verification_pass(nodes: float, depth: float, pairs: float = 0.0) -> PassShape:
    """The pass over the draft nodes of a tree and its root; a chain if nodes == depth.

    pairs: query-key pairs among these tokens; 0: nodes spread evenly over `depth` levels, where a node at depth d
    attends d + 1 tokens, (depth + 1) / 2 + 1 on average, and the root attends itself.
    """
    if nodes == depth:
        return verification_pass(nodes)
    even = 1.0 + nodes * ((depth + 1.0) / 2.0 + 1.0)
    return PassShape(new_tokens=nodes + 1.0, logit_positions=nodes + 1.0, attended_new_pairs=pairs or even)


def round_facts(draft: str, tokens: float, rates: Acceptance | Ranks) -> dict[str, float | str]:
    """Facts of a round for results: draft model, draft tokens, acceptance."""
    return {"draft": draft, "drafted_tokens": tokens, "acceptance": str(rates)}
