"""`--speculative ngram`: draft tokens are copied from an earlier occurrence of the last n-gram (prompt lookup)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmviewer.models.model import Model
from llmviewer.serving.generation import Generation
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.draft_options import (
    ACCEPTANCE_HELP,
    TOKENS_HELP,
    draft_tokens_change,
    required_acceptance,
    scheme_name,
)
from llmviewer.techniques.speculation.verification import verification_pass
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_parameters

MATCH = Parameter(name="match", default=1.0, low=0.0, high=1.0)
LOOKUP = Parameter(name="lookup_us", default=0.0, low=0.0, high=1e6)


def lookup_round(tokens: float, rates: Acceptance, match: float, lookup_s: float) -> Generation:
    """A round: a search on the host, then one pass over the tokens found and the token before them.

    match: share of passes with a match; the others yield one token, so that E = 1 + match (a_1 + a_1 a_2 + ...).  In a
    batch only some sequences match: a pass has 1 + match tokens per sequence on average.  The same mean is used for
    the two kinds of passes of a single sequence.
    """
    whole = verification_pass(tokens)
    found = rates.tokens(tokens) - 1.0
    shape = whole
    if match != 1.0:
        pairs = match * (tokens + 1.0) * (tokens + 2.0) * 0.5 + (1.0 - match)
        new = 1.0 + match * tokens
        shape = replace(whole, new_tokens=new, logit_positions=new, attended_new_pairs=pairs)
    return Generation(
        shape=shape,
        tokens=1.0 + found * match,
        extra_s=lookup_s if tokens else 0.0,
        facts={"drafted_tokens": tokens, "acceptance": str(rates), "match": match},
    )


def lookup_method(method: str, tokens: float, preset: str) -> Callable[[str], Change]:
    """The `make` function of a method that copies text.  tokens: default span length; preset: default acceptance."""

    def make(text: str) -> Change:
        where = f"--speculative {method}"
        given = parse_parameters(where, text, ("tokens", "acceptance", "match", "lookup_us"))
        match, lookup_s = MATCH.value(given, where), LOOKUP.value(given, where) * 1e-6
        rates = required_acceptance(where, given, preset)

        def generation(drafted: float, _: Model) -> Generation:
            return lookup_round(drafted, rates, match, lookup_s)

        return draft_tokens_change(scheme_name(method, text), where, given, generation, default=tokens)

    return make


TECHNIQUE = Technique(
    name="ngram",
    kind="speculation",
    summary="Draft tokens are copied from an earlier occurrence of the last n-gram (prompt lookup); no draft model.",
    parameters={
        "tokens": f"{TOKENS_HELP} (default: 10)",
        "acceptance": f"{ACCEPTANCE_HELP} (default: ngram-vicuna-7b)",
        "match": "share of passes with a match (default: 1, because published lengths include passes without)",
        "lookup_us": "search time on the host [µs] (default: 0)",
    },
    formula="time per token = (verification of 1 + match g tokens + lookup) / E; E = 1 + match (a_1 + a_1 a_2 + ...)",
    source="https://github.com/apoorvumang/prompt-lookup-decoding; "
    "vLLM https://docs.vllm.ai/en/latest/features/spec_decode/",
    example="llmviewer analyze llama-2-13b --hardware a100 --speculative ngram,tokens=10,acceptance=ngram-vicuna-13b",
    make=lookup_method("ngram", 10.0, "ngram-vicuna-7b"),
)
