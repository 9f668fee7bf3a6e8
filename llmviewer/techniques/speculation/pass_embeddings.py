"""`--speculative pass`: the target drafts for itself in one pass with look-ahead tokens (PaSS)."""

from __future__ import annotations

from llmviewer.models.model import Model
from llmviewer.serving.generation import Draft, Generation, PassShape
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
    """A round of two target passes: drafting over the last and `tokens` look-ahead tokens, then verification.

    The first pass generates one token as in plain decoding and drafts the others; the second accepts
    a_1 + a_1 a_2 + ... of them and adds a bonus token: E = 2 + a_1 + a_1 a_2 + ...  Without any acceptance that is one
    token per pass, as in plain decoding.  Not modelled: the look-ahead embeddings, h parameters each.
    Source: PaSS, arXiv 2311.13581, algorithm 1.
    """
    shape = verification_pass(tokens)
    draft = Draft(
        name=f"{target.name}, looking ahead", model=target, shape=shape, caches=False, shared=None, same_weights=True
    )
    verified = PassShape(new_tokens=shape.new_tokens, logit_positions=shape.logit_positions, ahead=1.0)
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
    summary="Parallel speculative sampling (PaSS): the target drafts for itself, in one pass with look-ahead tokens "
    "after the last token.",
    parameters={
        "tokens": TOKENS_HELP,
        "acceptance": ACCEPTANCE_HELP,
    },
    formula="two passes of tokens + 1 tokens each for E = 2 + a_1 + a_1 a_2 + ... tokens; extra memory: KV cache of "
    "the draft tokens only",
    source="PaSS arXiv 2311.13581",
    example="llmviewer analyze llama-7b --hardware a100 --speculative pass,tokens=4,acceptance=0.5",
    make=_make,
)
