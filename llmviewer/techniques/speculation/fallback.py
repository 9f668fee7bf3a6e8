"""`--speculative fallback`: a smaller model goes on while it is confident, the model takes over where it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.serving.generation import PLAIN, Draft, Generation, Shape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.draft_model import DRAFT_TECHNIQUES, load_draft
from llmviewer.techniques.speculation.draft_options import scheme_name
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

WHERE = "--speculative fallback"
FALLBACK = Parameter(name="fallback", low=0.0, high=1.0)
ROLLBACK = Parameter(name="rollback", default=0.0, low=0.0, high=1.0)
#: The published code stops a draft after 10 tokens unless told otherwise (num_small_iters).
TOKENS = Parameter(name="tokens", default=10, low=0, high=1024, whole=True)


def fallback_round(draft: Draft, fallback: float, rollback: float, tokens: float) -> Generation:
    """A round: the draft goes on token by token until its confidence falls, at the latest after `tokens`; then one pass
    of the model judges what it wrote and adds a token.

    With q = 1 - fallback for each token, independent of the others, the draft keeps k tokens with Pr(k >= i) = q^i:
    - its i-th pass runs if the i - 1 before it were confident: sum over i < tokens of q^i passes (the last one, whose
      token is dropped, is how it learns that it is not confident), with sum i q^i / sum q^i tokens ahead in the mean;
    - tokens that the model judges: E[k] = sum over i = 1 .. tokens of q^i, and one before them;
    - pairs among them: E[(k+1)(k+2)/2] = 1 + sum (i + 1) q^i;
    - the model rolls back to a token with probability `rollback` where it kept all before, and writes its own instead;
      after the last one it writes its own as well: 1 + sum (q (1 - rollback))^i tokens of a round.
    Approximated: one pass over the mean number of tokens stands for passes over each number, whose mean time may be a
    little longer.  Unlike speculation, answers change: what the model lets pass need not be its own choice.
    Source: BiLD, arXiv 2302.07863.
    """
    confident = (1.0 - fallback) ** np.arange(tokens + 1.0)
    passes, kept = float(confident[:-1].sum()), float(confident[1:].sum())
    ahead = float((confident[:-1] * np.arange(tokens)).sum()) / passes
    pairs = 1.0 + float((confident[1:] * np.arange(2.0, tokens + 2.0)).sum())
    accepted = Acceptance(rates=((1.0 - fallback) * (1.0 - rollback),))
    return Generation(
        shape=Shape(
            new_tokens=kept + 1.0, logit_positions=kept + 1.0, attended_new_pairs=pairs if fallback % 1.0 else None
        ),
        tokens=accepted.tokens(tokens),
        drafts=(replace(draft, passes=passes, shape=Shape(ahead=ahead)),),
        facts={"draft": draft.name, "drafted_tokens": kept, "fallback": fallback, "rollback": rollback},
    )


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("draft", "fallback", "rollback", "tokens", *DRAFT_TECHNIQUES))
    fallback, rollback, tokens = (one.value(given, WHERE) for one in (FALLBACK, ROLLBACK, TOKENS))
    draft = load_draft(given.get("draft", ""), given)
    generation = fallback_round(draft, fallback, rollback, tokens) if tokens else PLAIN
    return change_generation(scheme_name("fallback", text), lambda _: generation)


TECHNIQUE = Technique(
    name="fallback",
    kind="speculation",
    summary="A smaller model writes until it is not confident, the model judges what it wrote in one pass and "
    "goes on (BiLD); answers may differ from the model's own.",
    parameters={
        "draft": "name of the smaller model, or a path",
        "fallback": "probability that a token is one of which it is not confident",
        "rollback": "probability that the model takes a token back; 0 unless said",
        "tokens": "most tokens in a row; 10 unless said",
        "quantization": "number format of the draft's weights: w4a16 ...; its checkpoint's unless said",
        "tensor_parallel_size": "devices that share the draft; those of the model unless said",
    },
    formula="q = 1 - fallback: passes of the draft 1 + q + ... + q^(g-1); the model judges 1 + q + ... + q^g tokens; "
    "E = 1 + sum over i = 1..g of (q (1 - rollback))^i",
    source="BiLD arXiv 2302.07863; https://github.com/kssteven418/BigLittleDecoder (10 tokens at most)",
    example="llmviewer analyze llama-2-70b --hardware h100 -tp 4 "
    "--speculative fallback,draft=tinyllama-1.1b,fallback=0.2,rollback=0.1",
    make=_make,
)
