"""Words that methods share: how many tokens are drafted, how often they are accepted; and how results list a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from llmviewer.core.errors import UserError
from llmviewer.models.model import Model
from llmviewer.serving.generation import PLAIN, Generation, GenerationScheme
from llmviewer.techniques.speculation import rates
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.technique import Change, Parameter, change_generation

#: Most tokens that `tokens=best` tries to draft.
MAX_BEST_TOKENS = 16
TOKENS = Parameter(name="tokens", low=0, high=1024, whole=True)
#: What the registry says of parameters that most methods take.
TOKENS_HELP = f"drafted in a round, or best: the fastest of 0 to {MAX_BEST_TOKENS} at every point"
ACCEPTANCE_HELP = "rate of a drafted token: 0.8, by position 0.8/0.7/0.6 (the last goes on), or a published preset"
#: Tokens drafted in a round, model -> the round.
Round: TypeAlias = Callable[[float, Model], Generation]


def required_acceptance(where: str, given: Mapping[str, str], default: str = "") -> Acceptance:
    """How often drafted tokens are accepted.  default: a published one, where there is one for the method."""
    text = given.get("acceptance", default)
    if not text:
        raise UserError(f"{where}: acceptance is missing; nobody has published one by name, write acceptance=0.7")
    return rates.read_acceptance(where, text)


def draft_tokens_change(name: str, where: str, given: Mapping[str, str], make: Round, default: float = 0.0) -> Change:
    """The change that drafts the tokens asked for; `best` takes the best of 0 to 16 at every point."""
    if given.get("tokens") == "best":
        schemes = [
            GenerationScheme(name=name, make=partial(make, float(tokens))) for tokens in range(MAX_BEST_TOKENS + 1)
        ]
        return change_generation(name, schemes[0].make, schemes)
    tokens = default if default and "tokens" not in given else TOKENS.value(given, where)
    return change_generation(name, partial(make, tokens) if tokens else lambda _: PLAIN)


def scheme_name(method: str, text: str) -> str:
    """What results call it: speculative(ngram,tokens=4)."""
    return f"speculative({','.join(filter(None, (method, text)))})"
