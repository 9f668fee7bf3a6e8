"""The pass of the model over what was drafted, in a chain or in a tree, and what results say of it."""

from __future__ import annotations

from llmviewer.serving.generation import Shape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.ranks import Ranks


def verification_pass(tokens: float) -> Shape:
    """A pass over drafted tokens, one after another, and the token before them."""
    return Shape(new_tokens=tokens + 1.0, logit_positions=tokens + 1.0)


def tree_verification_pass(nodes: float, depth: float, pairs: float = 0.0) -> Shape:
    """A pass over the nodes of a tree and its root.

    pairs: query-key pairs among them; unless known, those of nodes that lie evenly on `depth` levels: a node at depth d
    sees d + 1 tokens, (depth + 1) / 2 + 1 in the mean, and the root itself.  With a node on every level it is a chain.
    """
    if nodes == depth:
        return verification_pass(nodes)
    even = 1.0 + nodes * ((depth + 1.0) / 2.0 + 1.0)
    return Shape(new_tokens=nodes + 1.0, logit_positions=nodes + 1.0, attended_new_pairs=pairs or even)


def round_facts(draft: str, tokens: float, how: Acceptance | Ranks) -> dict[str, float | str]:
    """What results say of a round."""
    return {"draft": draft, "drafted_tokens": tokens, "acceptance": str(how)}
