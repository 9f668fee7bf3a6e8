"""`--speculative draft=NAME`: a smaller model drafts tokens, the target verifies all of them in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from llmviewer import models
from llmviewer.core.errors import UserError
from llmviewer.models.model import Model
from llmviewer.serving.generation import Draft, Generation, PassShape
from llmviewer.techniques.speculation import rates
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.adaptive import ADAPTIVE_HELP, Stopping, adaptive_round, read_stopping
from llmviewer.techniques.speculation.draft_options import (
    ACCEPTANCE_HELP,
    TOKENS_HELP,
    draft_tokens_change,
    scheme_name,
)
from llmviewer.techniques.speculation.head_files import head_change, head_of
from llmviewer.techniques.speculation.verification import round_facts, verification_pass
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_parameters

WHERE = "--speculative draft=NAME"
DISTILLED = Parameter(name="distilled", default=0.0, low=0.0, high=1.0)
#: Registry options that the draft model may set for itself.
DRAFT_TECHNIQUES = ("quantization", "tensor_parallel_size")
#: Share of a vocabulary that may be padding (Qwen2.5: 151,936 tokens in small models, 152,064 in large ones).
PADDING = 0.01


def draft_round(draft: Draft, tokens: float, accepted: Acceptance) -> Generation:
    """A round: `tokens` passes of the draft model, one token each, then one verification pass over tokens + 1 tokens.

    Expected tokens per round, including the bonus token: 1 + a_1 + a_1 a_2 + ..., for a constant rate a
    (1 - a^(g+1)) / (1 - a).  The cache of the i-th draft pass is i - 1 tokens longer than that of the first; all passes
    use the mean, (g - 1) / 2.  Not modelled: after a round without rejection the draft model processes one more token.
    Source: Leviathan et al., arXiv 2211.17192, equation 1.
    """
    return Generation(
        shape=verification_pass(tokens),
        tokens=accepted.tokens(tokens),
        drafts=(replace(draft, passes=tokens, shape=PassShape(ahead=max(tokens - 1.0, 0.0) / 2.0)),),
        facts=round_facts(draft.name, tokens, accepted),
    )


def drafting(draft: Draft, tokens: float, accepted: Acceptance, stopping: Stopping | None) -> Generation:
    """A round of a fixed number of draft tokens, or of at most that many if drafting may end before."""
    if stopping is None or not tokens:
        return draft_round(draft, tokens, accepted)
    return adaptive_round(draft, tokens, accepted, stopping)


def load_draft(name: str, given: Mapping[str, str]) -> Draft:
    """Load a known model as draft model, with its own options among `given`."""
    if not name:
        raise UserError("--speculative: draft is missing; write draft=NAME of a model")
    model = models.load(name)
    return Draft(name=model.name, model=model, techniques={own: given[own] for own in DRAFT_TECHNIQUES if own in given})


def vocabulary_notes(generations: Iterable[Generation], target: Model) -> tuple[str, ...]:
    """Warnings that the tokens of a draft model are not those of its target, which verification compares.

    Vocabularies of one tokenizer may be padded differently.
    """
    own = _vocabulary(target)
    drafts = {draft.name: _vocabulary(draft.model) for generation in generations for draft in generation.drafts}
    return tuple(
        f"draft {name} has {size:,.0f} tokens, its target {own:,.0f}: engines verify drafts of one vocabulary only"
        for name, size in drafts.items()
        if own and size and abs(size - own) > PADDING * own
    )


def _vocabulary(model: Model) -> float:
    """The number of tokens that a model predicts; 0 without a head."""
    head = getattr(model.head, "lm_head", None)
    return float(head.out_features) if head else 0.0


def _make(text: str) -> Change:
    allowed = ("draft", "tokens", "acceptance", "adaptive", "distilled", "topk", "nodes", *DRAFT_TECHNIQUES)
    given = parse_parameters(WHERE, text, allowed)
    head = head_of(given["draft"]) if given.get("draft") else None
    if head is not None and "adaptive" in given:
        raise UserError(f"{WHERE}: adaptive is an option of draft models; heads draft a fixed number of tokens")
    if head is not None:
        return head_change(head, text, given)
    for name in ("topk", "nodes"):
        if name in given:
            raise UserError(f"{WHERE}: {name} is an option of EAGLE heads; a draft model drafts a chain")
    draft = load_draft(given.get("draft", ""), given)
    accepted = rates.read_acceptance(WHERE, given.get("acceptance", "")).distilled(DISTILLED.value(given, WHERE))
    stopping = read_stopping(WHERE, given)

    def make(tokens: float, _: Model) -> Generation:
        return drafting(draft, tokens, accepted, stopping)

    return draft_tokens_change(scheme_name("", text), WHERE, given, make)


TECHNIQUE = Technique(
    name="draft",
    kind="speculation",
    summary="A smaller model drafts tokens one after another; the target model verifies them in one pass.",
    parameters={
        "draft": "name or path of the draft model, or path of a draft head's config (EAGLE, EAGLE-3, DFlash, DSpark, "
        "Domino, MTP, Medusa, MLP speculator)",
        "tokens": TOKENS_HELP,
        "acceptance": ACCEPTANCE_HELP,
        "adaptive": ADAPTIVE_HELP,
        "distilled": "share of rejections that distillation of the draft model avoids, before or while it serves "
        "(online, on spare compute); default: 0",
        "topk": "children of every node of an EAGLE head's tree (only with its config)",
        "nodes": "drafted tokens of an EAGLE head's tree (only with its config)",
        "quantization": "number format of the draft model's weights, e.g. w4a16 (default: its checkpoint's)",
        "tensor_parallel_size": "devices that share the draft model (default: those of the target)",
    },
    formula="time per token = (verification of g + 1 tokens + g passes of the draft model) / E; "
    "E = 1 + sum over i of a_1 ... a_i = (1 - a^(g+1)) / (1 - a), including the bonus token; distilled: "
    "1 - (1 - a)(1 - share); adaptive r/w: pass i + 1 runs with (a r)^i, or after wrong tokens with a power of w; "
    "memory: both models and both caches, g tokens longer",
    source="Leviathan et al. arXiv 2211.17192 (equation 1, theorem 3.8); distillation arXiv 2310.08461, while serving "
    "(online) arXiv 2310.07177; adaptive: DISCO arXiv 2405.04304, Kangaroo arXiv 2404.18911; "
    "vLLM https://docs.vllm.ai/en/latest/features/spec_decode/",
    example="llmviewer analyze llama-2-70b --hardware h100 -tp 4 "
    "--speculative draft=tinyllama-1.1b,tokens=4,acceptance=0.7",
    make=_make,
)
