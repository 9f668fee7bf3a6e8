"""What methods that draft by heads or layers of their own share: how many tokens, how often they are accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from llmviewer.errors import UserError
from llmviewer.generation import PLAIN, Generation, Scheme, Shape
from llmviewer.models.model import Model
from llmviewer.schemes import acceptance
from llmviewer.schemes.acceptance import Acceptance
from llmviewer.schemes.method_text import MOST, TOKENS
from llmviewer.technique import Change, generating

#: Tokens drafted in a round, model -> the round.
Round: TypeAlias = Callable[[float, Model], Generation]


def accepted(where: str, given: Mapping[str, str], default: str = "") -> Acceptance:
    """How often drafted tokens are accepted.  default: a published one, where there is one for the method."""
    text = given.get("acceptance", default)
    if not text:
        raise UserError(f"{where}: acceptance is missing; nobody has published one by name, write acceptance=0.7")
    return acceptance.read(where, text)


def by_tokens(name: str, where: str, given: Mapping[str, str], make: Round, default: float = 0.0) -> Change:
    """The change that drafts the tokens asked for; `best` takes the best of 0 to 16 at every point."""
    if given.get("tokens") == "best":
        schemes = [Scheme(name=name, make=partial(make, float(tokens))) for tokens in range(MOST + 1)]
        return generating(name, schemes[0].make, schemes)
    tokens = default if default and "tokens" not in given else TOKENS.of(given, where)
    return generating(name, partial(make, tokens) if tokens else lambda _: PLAIN)


def said(draft: str, tokens: float, how: Acceptance) -> dict[str, float | str]:
    """What results say of a round."""
    return {"draft": draft, "drafted_tokens": tokens, "acceptance": str(how)}


def verifying(tokens: float) -> Shape:
    """A pass over drafted tokens, one after another, and the token before them."""
    return Shape(new_tokens=tokens + 1.0, logit_positions=tokens + 1.0)


def verifying_tree(nodes: float, depth: float, pairs: float = 0.0) -> Shape:
    """A pass over the nodes of a tree and its root.

    pairs: query-key pairs among them; unless known, those of nodes that lie evenly on `depth` levels: a node at depth d
    sees d + 1 tokens, (depth + 1) / 2 + 1 in the mean, and the root itself.  With a node on every level it is a chain.
    """
    if nodes == depth:
        return verifying(nodes)
    even = 1.0 + nodes * ((depth + 1.0) / 2.0 + 1.0)
    return Shape(new_tokens=nodes + 1.0, logit_positions=nodes + 1.0, attended_new_pairs=pairs or even)
