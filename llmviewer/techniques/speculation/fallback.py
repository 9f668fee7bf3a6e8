"""`--speculative fallback`: a smaller model drafts while it is confident, then the target takes over (BiLD)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.serving.generation import AUTOREGRESSIVE, Draft, Generation, PassShape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.draft_model import DRAFT_TECHNIQUES, load_draft
from llmviewer.techniques.speculation.draft_options import scheme_name
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

WHERE = "--speculative fallback"
FALLBACK = Parameter(name="fallback", low=0.0, high=1.0)
ROLLBACK = Parameter(name="rollback", default=0.0, low=0.0, high=1.0)
#: Default of the published code (num_small_iters).
TOKENS = Parameter(name="tokens", default=10, low=0, high=1024, whole=True)


def fallback_round(draft: Draft, fallback: float, rollback: float, tokens: float) -> Generation:
    """A round: the draft model writes up to `tokens` tokens while it is confident, then the target verifies them.

    Each token is confident with q = 1 - fallback, independently, so k tokens are kept with Pr(k >= i) = q^i:
    - the i-th draft pass runs if the i - 1 before it were confident: sum over i < tokens of q^i passes (the token of
      the unconfident pass is dropped), on average sum i q^i / sum q^i tokens ahead;
    - verified tokens: E[k] = sum over i = 1 .. tokens of q^i, and the token before them;
    - pairs among them: E[(k+1)(k+2)/2] = 1 + sum (i + 1) q^i;
    - the target rolls back a token with probability `rollback` if it kept all before, and writes its own; it also adds
      a token after the last one: 1 + sum (q (1 - rollback))^i tokens per round.
    Approximation: one pass over the mean number of tokens replaces passes over each number, whose mean time may be a
    little longer.  Unlike speculative sampling, answers change: accepted tokens need not be the target's own choice.
    Source: BiLD, arXiv 2302.07863.
    """
    confident = (1.0 - fallback) ** np.arange(tokens + 1.0)
    passes, kept = float(confident[:-1].sum()), float(confident[1:].sum())
    ahead = float((confident[:-1] * np.arange(tokens)).sum()) / passes
    pairs = 1.0 + float((confident[1:] * np.arange(2.0, tokens + 2.0)).sum())
    accepted = Acceptance(rates=((1.0 - fallback) * (1.0 - rollback),))
    return Generation(
        shape=PassShape(
            new_tokens=kept + 1.0, logit_positions=kept + 1.0, attended_new_pairs=pairs if fallback % 1.0 else None
        ),
        tokens=accepted.tokens(tokens),
        drafts=(replace(draft, passes=passes, shape=PassShape(ahead=ahead)),),
        facts={"draft": draft.name, "drafted_tokens": kept, "fallback": fallback, "rollback": rollback},
    )


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("draft", "fallback", "rollback", "tokens", *DRAFT_TECHNIQUES))
    fallback, rollback, tokens = (one.value(given, WHERE) for one in (FALLBACK, ROLLBACK, TOKENS))
    draft = load_draft(given.get("draft", ""), given)
    generation = fallback_round(draft, fallback, rollback, tokens) if tokens else AUTOREGRESSIVE
    return change_generation(scheme_name("fallback", text), lambda _: generation)


TECHNIQUE = Technique(
    name="fallback",
    kind="speculation",
    summary="A smaller model writes tokens while it is confident; the target then verifies them in one pass and adds "
    "a token (BiLD). Answers may differ from the target's own.",
    parameters={
        "draft": "name or path of the draft model",
        "fallback": "probability that the draft model is not confident of a token",
        "rollback": "probability that the target rejects a token (default: 0)",
        "tokens": "most draft tokens per round (default: 10)",
        "quantization": "number format of the draft model's weights, e.g. w4a16 (default: its checkpoint's)",
        "tensor_parallel_size": "devices that share the draft model (default: those of the target)",
    },
    formula="q = 1 - fallback: draft passes 1 + q + ... + q^(g-1); the target verifies 1 + q + ... + q^g tokens; "
    "E = 1 + sum over i = 1..g of (q (1 - rollback))^i",
    source="BiLD arXiv 2302.07863; https://github.com/kssteven418/BigLittleDecoder (10 tokens at most)",
    example="llmviewer analyze llama-2-70b --hardware h100 -tp 4 "
    "--speculative fallback,draft=tinyllama-1.1b,fallback=0.2,rollback=0.1",
    make=_make,
)
