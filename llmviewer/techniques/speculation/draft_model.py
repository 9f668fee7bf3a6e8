"""`--speculative draft=NAME`: a smaller model drafts, the model verifies all drafted tokens in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer import models
from llmviewer.core.errors import UserError
from llmviewer.serving.generation import Draft, Generation, Shape
from llmviewer.techniques.speculation import rates
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.draft_options import (
    ACCEPTANCE_HELP,
    TOKENS_HELP,
    draft_tokens_change,
    scheme_name,
)
from llmviewer.techniques.speculation.verification import round_facts, verification_pass
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_parameters

WHERE = "--speculative draft=NAME"
DISTILLED = Parameter(name="distilled", default=0.0, low=0.0, high=1.0)
#: What the draft may have otherwise than the model: options of the registry.
DRAFT_TECHNIQUES = ("quantization", "tensor_parallel_size")


def draft_round(draft: Draft, tokens: float, accepted: Acceptance) -> Generation:
    """A round: `tokens` passes of the draft, one token each, then one pass of the model over them and the last token.

    Expected tokens of a round, the model's own included: 1 + a_1 + a_1 a_2 + ..., for a constant rate a
    (1 - a^(g+1)) / (1 - a).  The i-th pass of the draft finds i - 1 tokens more in its cache than the first; their
    mean, (g - 1) / 2, stands for all.  Left out: after a round without a rejection the draft has one token more to
    take in.  Source: Leviathan et al., arXiv 2211.17192, equation 1.
    """
    return Generation(
        shape=verification_pass(tokens),
        tokens=accepted.tokens(tokens),
        drafts=(replace(draft, passes=tokens, shape=Shape(ahead=max(tokens - 1.0, 0.0) / 2.0)),),
        facts=round_facts(draft.name, tokens, accepted),
    )


def load_draft(name: str, given: Mapping[str, str]) -> Draft:
    """A model of the library as a draft, with the options of its own among those given."""
    if not name:
        raise UserError("--speculative: draft is missing; write draft=NAME of a model")
    model = models.load(name)
    return Draft(name=model.name, model=model, techniques={own: given[own] for own in DRAFT_TECHNIQUES if own in given})


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("draft", "tokens", "acceptance", "distilled", *DRAFT_TECHNIQUES))
    draft = load_draft(given.get("draft", ""), given)
    accepted = rates.read_acceptance(WHERE, given.get("acceptance", "")).raised(DISTILLED.value(given, WHERE))
    return draft_tokens_change(
        scheme_name("", text), WHERE, given, lambda tokens, _: draft_round(draft, tokens, accepted)
    )


TECHNIQUE = Technique(
    name="draft",
    kind="speculation",
    summary="A smaller model drafts tokens one after another, the model verifies them in one pass.",
    parameters={
        "draft": "name of the smaller model, or a path",
        "tokens": TOKENS_HELP,
        "acceptance": ACCEPTANCE_HELP,
        "distilled": "share of the rejections that distillation makes disappear; 0 unless said",
        "quantization": "number format of the draft's weights: w4a16 ...; its checkpoint's unless said",
        "tensor_parallel_size": "devices that share the draft; those of the model unless said",
    },
    formula="time per token = (verification of g + 1 tokens + g steps of the draft) / E; "
    "E = 1 + sum over i of a_1 ... a_i = (1 - a^(g+1)) / (1 - a), the model's own token included; distilled: "
    "1 - (1 - a)(1 - share); memory of both models and both caches, g tokens longer",
    source="Leviathan et al. arXiv 2211.17192 (equation 1, theorem 3.8); distillation arXiv 2310.08461; "
    "vLLM https://docs.vllm.ai/en/latest/features/spec_decode/",
    example="llmviewer analyze llama-2-70b --hardware h100 -tp 4 "
    "--speculative draft=tinyllama-1.1b,tokens=4,acceptance=0.7",
    make=_make,
)
