"""`--speculative copy`: an attention layer over phrases of documents copies a phrase, or writes a token (CoG)."""

from __future__ import annotations

from llmviewer.core.ir import Block, Tensor
from llmviewer.core.workload import Step
from llmviewer.models.model import Model
from llmviewer.ops.gemm import Linear
from llmviewer.serving.generation import Draft, Generation, PassShape
from llmviewer.techniques.speculation.draft_options import scheme_name
from llmviewer.techniques.speculation.module import Module, draft_module
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

SOURCE = "Copy Is All You Need arXiv 2307.06962; https://github.com/gmftbyGMFTBY/Copyisallyouneed"
WHERE = "--speculative copy"
LENGTH = Parameter(name="length", low=1.0, high=64.0)
PHRASES = Parameter(name="phrases", low=1, high=1e9, whole=True)
SEARCH = Parameter(name="search_us", default=0.0, low=0.0, high=1e6)


def phrase_attention(target: Model, phrases: float) -> Module:
    """The query of the last hidden state, h -> h, and its scores with `phrases` vectors of h elements on the device.

    Phrase vectors are computed beforehand and extend the vocabulary: they are split over devices like an LM head.  Own
    parameters: h h + phrases h.
    """
    width, dtype = target.hidden, target.dtype
    query = Linear(name="phrase_query", in_features=width, out_features=width, dtype=dtype)
    scores = Linear(name="lm_head", in_features=width, out_features=int(phrases), dtype=dtype)

    def blocks(step: Step) -> tuple[Block, ...]:
        x = Tensor(name="hidden", elements=step.logits * (1.0 * width), dtype=dtype)
        asked = query.operator(x, step.logits)
        found = scores.operator(asked.output, step.logits)
        return (Block(name="phrase_attention", operators=(asked, found), scope="model"),)

    return draft_module(target, f"attention over {phrases:,.0f} phrases", blocks, SOURCE)


def copying_round(module: Module, length: float, search_s: float) -> Generation:
    """A round: one pass of the target over the tokens that the round before has copied, and the choice of the next.

    length: mean tokens of a choice, a phrase or a single token of the vocabulary.  Nothing is verified: the choice is
    the model's own.
    """
    draft = Draft(name=module.architecture, model=module, caches=False)
    shape = PassShape(new_tokens=length, logit_positions=1.0)
    return Generation(
        shape=shape,
        tokens=length,
        drafts=(draft,),
        extra_s=search_s,
        facts={"draft": draft.name, "phrase_tokens": length},
    )


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("length", "phrases", "search_us"))
    length, phrases, search_us = (one.value(given, WHERE) for one in (LENGTH, PHRASES, SEARCH))

    def make(target: Model) -> Generation:
        return copying_round(phrase_attention(target, phrases), length, search_us * 1e-6)

    return change_generation(scheme_name("copy", text), make)


TECHNIQUE = Technique(
    name="copy",
    kind="speculation",
    summary="An attention layer over phrases of retrieved documents selects a phrase to copy, or a token (Copy Is All "
    "You Need); no verification.",
    parameters={
        "length": "mean tokens of a choice",
        "phrases": "phrases of the retrieved documents, each a vector on the device",
        "search_us": "retrieval of documents on the host [µs] (default: 0)",
    },
    formula="a query h -> h and its products with the phrases, phrases x h; the target's pass processes the length "
    "tokens of the choice before; E = length",
    source=SOURCE + "; survey arXiv 2402.16363, section 4.2.2",
    example="llmviewer analyze gpt2 --hardware v100 --input-len 512 --speculative copy,length=2,phrases=100000",
    make=_make,
)
