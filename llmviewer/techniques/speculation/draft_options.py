"""Parameters shared by the speculation methods: number of draft tokens, acceptance, and the name in results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from llmviewer.core.errors import UserError
from llmviewer.models.model import Model
from llmviewer.serving.generation import AUTOREGRESSIVE, Generation, GenerationScheme
from llmviewer.techniques.speculation import rates
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.technique import Change, Parameter, change_generation

#: Most tokens that `tokens=best` tries to draft.
MAX_BEST_TOKENS = 16
TOKENS = Parameter(name="tokens", low=0, high=1024, whole=True)
#: Help texts of parameters that most methods have.
TOKENS_HELP = f"draft tokens per round, or best: the fastest of 0 to {MAX_BEST_TOKENS} at every point"
ACCEPTANCE_HELP = (
    "acceptance rate of a draft token: 0.8, by position 0.8/0.7/0.6 (the last one repeats), or a published preset"
)
#: (draft tokens per round, target model) -> the round.
Round: TypeAlias = Callable[[float, Model], Generation]


def required_acceptance(where: str, given: Mapping[str, str], default: str = "") -> Acceptance:
    """The acceptance given by the user.  default: published preset of the method; "" if there is none."""
    text = given.get("acceptance", default)
    if not text:
        raise UserError(f"{where}: acceptance is missing and has no published default; write acceptance=0.7")
    return rates.read_acceptance(where, text)


def draft_tokens_change(name: str, where: str, given: Mapping[str, str], make: Round, default: float = 0.0) -> Change:
    """The change to rounds with the given number of draft tokens; `best`: the fastest of 0 to 16 at every point."""
    if given.get("tokens") == "best":
        schemes = [
            GenerationScheme(name=name, make=partial(make, float(tokens))) for tokens in range(MAX_BEST_TOKENS + 1)
        ]
        return change_generation(name, schemes[0].make, schemes)
    tokens = default if default and "tokens" not in given else TOKENS.value(given, where)
    return change_generation(name, partial(make, tokens) if tokens else lambda _: AUTOREGRESSIVE)


def scheme_name(method: str, text: str) -> str:
    """Name of the scheme in results, such as speculative(ngram,tokens=4)."""
    return f"speculative({','.join(filter(None, (method, text)))})"
