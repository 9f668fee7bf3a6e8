"""`--speculative pass`: the model itself drafts in one pass, from tokens that ask it to look ahead."""

from __future__ import annotations

from llmviewer.models.model import Model
from llmviewer.serving.generation import Draft, Generation, Shape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.draft_options import (
    ACCEPTANCE_HELP,
    TOKENS_HELP,
    draft_tokens_change,
    required_acceptance,
    scheme_name,
)
from llmviewer.techniques.speculation.verification import round_facts, verification_pass
from llmviewer.techniques.technique import Change, Technique, parse_parameters

WHERE = "--speculative pass"


def pass_round(target: Model, tokens: float, by_position: Acceptance) -> Generation:
    """A round of two passes of the model: one over the last token and `tokens` look-ahead tokens, one over the token
    that the first has made and the drafted ones.

    The first pass makes one token as plain decoding does and drafts the others; the second accepts
    a_1 + a_1 a_2 + ... of them and adds one of its own: E = 2 + a_1 + a_1 a_2 + ...  With nothing accepted that is a
    token a pass, as without.  Left out: the look-ahead embeddings, h parameters each.
    Source: PaSS, arXiv 2311.13581, algorithm 1.
    """
    shape = verification_pass(tokens)
    draft = Draft(
        name=f"{target.name}, looking ahead", model=target, shape=shape, caches=False, shared=None, same_weights=True
    )
    verified = Shape(new_tokens=shape.new_tokens, logit_positions=shape.logit_positions, ahead=1.0)
    return Generation(
        shape=verified,
        tokens=1.0 + by_position.tokens(tokens),
        drafts=(draft,),
        facts=round_facts(draft.name, tokens, by_position),
    )


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("tokens", "acceptance"))
    by_position = required_acceptance(WHERE, given)

    def make(tokens: float, target: Model) -> Generation:
        return pass_round(target, tokens, by_position)

    return draft_tokens_change(scheme_name("pass", text), WHERE, given, make)


TECHNIQUE = Technique(
    name="pass",
    kind="speculation",
    summary="Parallel speculative sampling (PaSS): the model drafts itself, in one pass with look-ahead tokens "
    "behind the last one.",
    parameters={
        "tokens": TOKENS_HELP,
        "acceptance": ACCEPTANCE_HELP,
    },
    formula="two passes of tokens + 1 tokens each for E = 2 + a_1 + a_1 a_2 + ... tokens; no memory but for "
    "the tokens' cache",
    source="PaSS arXiv 2311.13581",
    example="llmviewer analyze llama-7b --hardware a100 --speculative pass,tokens=4,acceptance=0.5",
    make=_make,
)
