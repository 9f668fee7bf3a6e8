"""`--speculative METHOD,...`: how its methods are declared, the parameters that most have, and their verification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, TypeAlias, TypeVar

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, unknown
from llmviewer.language.grammar import Form, Grammar
from llmviewer.models.model import Model
from llmviewer.serving.generation import AUTOREGRESSIVE, Generation, GenerationScheme, PassShape
from llmviewer.techniques.speculation.acceptance import Acceptance, Ranks, check_ranks
from llmviewer.techniques.technique import (
    Change,
    Declared,
    P,
    Whole,
    called,
    change_generation,
    declared,
)

#: Most tokens that `tokens=best` tries to draft.
MAX_BEST_TOKENS = 16
BEST = "best"
#: Hint in error messages on where to find the preset names.
PRESETS_HINT = "`llmviewer techniques show speculative` lists them"
#: A round for a target, which is the same for all, or one of the rounds of which every point uses the fastest.
Round: TypeAlias = Callable[[Model], Generation]
Rounds: TypeAlias = Generation | Round | Sequence[Round]
R = TypeVar("R", bound=Rounds)


def read_acceptance(text: str) -> Acceptance:
    """Parse `0.8`, `0.8/0.7/0.6` or a preset's name."""
    from llmviewer.techniques.speculation.acceptance_presets import PRESETS

    if text in PRESETS:
        return PRESETS[text].acceptance
    try:
        rates = tuple(float(part) for part in text.split("/"))
    except ValueError:
        hint = f"{PRESETS_HINT}; or rates from 0 to 1: 0.8, or 0.8/0.7/0.6 by position"
        raise unknown("acceptance", text, PRESETS, hint=hint) from None
    if not all(0.0 <= rate <= 1.0 for rate in rates):
        raise ValueError("allowed: rates from 0 to 1, or a preset's name")
    return Acceptance(rates=rates)


def read_ranks(text: str) -> Ranks:
    """Parse `0.6/0.15/0.08`, rates of ranks 1, 2, 3 at every depth, or a preset's name."""
    from llmviewer.techniques.speculation.acceptance_presets import RANKS

    if text in RANKS:
        return RANKS[text].ranks
    try:
        row = tuple(float(part) for part in text.split("/"))
    except ValueError:
        hint = "or falling rates by rank that sum to at most 1: 0.6/0.15/0.08"
        raise unknown("ranks", text, RANKS, hint=hint) from None
    check_ranks(f"ranks '{text}'", row)
    return Ranks(rates=(row,))


#: Forms of parameters that most methods have.
TOKENS = partial(
    Whole,
    help=f"draft tokens per round, or best: the fastest of 0 to {MAX_BEST_TOKENS} at every point",
    low=0,
    high=1024,
    words=(BEST,),
)
RATES = partial(
    Form,
    help="acceptance rate of a draft token: 0.8, by position 0.8/0.7/0.6 (the last one repeats), or a published "
    f"preset: {PRESETS_HINT}",
    parse=read_acceptance,
)
Tokens: TypeAlias = Annotated[float | str, TOKENS()]
Rates: TypeAlias = Annotated[Acceptance, RATES()]


def speculation(
    name: str, *, formula: str, source: str, example: str, alone: str = ""
) -> Callable[[Callable[P, R]], Declared[P, R]]:
    """Declare a method of --speculative by a function of its parameters.

    alone: why its tokens cannot be divided, as in GenerationScheme; such tokens also need the whole cache.
    """
    where = f"--speculative {name}"

    def declare(function: Callable[P, R]) -> Declared[P, R]:
        grammar = Grammar.of(function)

        def make(text: str) -> Change:
            return round_change(scheme_name(name, text), called(function, where, grammar, text), alone)

        words = {"name": name, "formula": formula, "source": source, "example": example}
        return declared(function, grammar, make, kind="speculation", **words)

    return declare


def round_change(title: str, rounds: Rounds, alone: str = "") -> Change:
    """The change to rounds of a method, listed as `title`."""
    if isinstance(rounds, Generation):
        generate = change_generation(title, lambda _: rounds, alone=alone)
    elif callable(rounds):
        generate = change_generation(title, rounds, alone=alone)
    else:
        schemes = [GenerationScheme(name=title, make=one) for one in rounds]
        generate = change_generation(title, schemes[0].make, schemes)

    def change(system: System) -> System:
        if alone and (system.kv_cache.hit_rate or system.kv_cache.evicts):
            raise UserError(f"{title}: every token depends on later ones; remove --prefix-cache and --kv-evict")
        return generate(system)

    return change


def drafted(tokens: float | str, round_of: Callable[[float, Model], Generation]) -> Rounds:
    """The rounds with a number of draft tokens; none are plain decoding."""
    if isinstance(tokens, str):
        return [partial(round_of, float(count)) for count in range(MAX_BEST_TOKENS + 1)]
    return partial(round_of, tokens) if tokens else AUTOREGRESSIVE


def scheme_name(method: str, text: str) -> str:
    """Name of the scheme in results, such as speculative(ngram,tokens=4)."""
    return f"speculative({','.join(filter(None, (method, text)))})"


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
