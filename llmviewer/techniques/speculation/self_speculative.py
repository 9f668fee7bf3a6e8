"""`--speculative self`: the target drafts for itself with some of its attention and MLP parts skipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from llmviewer.layers.decoder import DecoderLayer, Residual
from llmviewer.models.model import Model
from llmviewer.serving.generation import Draft, Generation
from llmviewer.techniques.speculation.adaptive import ADAPTIVE_HELP, read_stopping
from llmviewer.techniques.speculation.draft_model import drafting
from llmviewer.techniques.speculation.draft_options import (
    ACCEPTANCE_HELP,
    TOKENS_HELP,
    draft_tokens_change,
    required_acceptance,
    scheme_name,
)
from llmviewer.techniques.speculation.module import checkpoint_formats
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_parameters

SOURCE = "Draft & Verify arXiv 2309.08168"


def with_parts_skipped(target: Model, attention: float, mlp: float) -> Model:
    """The target without the shares `attention` and `mlp` of its attention (or recurrent) and MLP parts.

    The number of skipped parts is rounded per kind of layer; each is skipped with its norm and residual sum.  The
    method chooses them by a search on sample data.  The remaining parts read the caches that the target has filled.
    """
    kept = [(layer.name, part) for layer in target.layers for part in _kept(layer, attention, mlp)]
    formats = checkpoint_formats(target, {part.name: (source, part.repeats) for source, part in kept})
    layers = tuple(part for _, part in kept)
    return replace(target, name=f"{target.name} with layers skipped", layers=layers, checkpoint=formats)


def _kept(layer: DecoderLayer, attention: float, mlp: float) -> Iterator[DecoderLayer]:
    """Layers that keep both parts, then layers that keep only one, both spread evenly."""
    mixers = layer.repeats - round(layer.repeats * attention) if layer.mixer else 0
    parts = layer.repeats - round(layer.repeats * mlp) if layer.feed_forward else 0
    both, kept = min(mixers, parts), _spread(layer.numbers or range(layer.repeats), max(mixers, parts))
    whole = _spread(kept, both)
    partly = tuple(number for number in kept if number not in whole)
    if both:
        yield replace(layer, repeats=both, numbers=whole)
    if mixers > both:
        name = layer.name if not layer.feed_forward else f"{layer.name}_attention"
        yield replace(layer, name=name, repeats=mixers - both, numbers=partly, feed_forward=None)
    if parts > both:
        norms = layer.norms
        if layer.residual is Residual.PARALLEL and norms.mlp is None:  # one norm is used by both parts
            norms = replace(norms, mlp=norms.attn)
        name = layer.name if not layer.mixer else f"{layer.name}_mlp"
        yield replace(layer, name=name, repeats=parts - both, numbers=partly, mixer=None, norms=norms)


def _spread(numbers: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` of the layer numbers, spread evenly."""
    return tuple(numbers[at * len(numbers) // count] for at in range(count))


WHERE = "--speculative self"
ATTENTION = Parameter(name="attention", low=0.0, high=0.99)
MLP = Parameter(name="mlp", low=0.0, high=0.99)


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("attention", "mlp", "tokens", "acceptance", "adaptive"))
    attention, mlp = ATTENTION.value(given, WHERE), MLP.value(given, WHERE)
    by_position, stopping = required_acceptance(WHERE, given), read_stopping(WHERE, given)

    def make(tokens: float, target: Model) -> Generation:
        model = with_parts_skipped(target, attention, mlp)
        draft = Draft(name=model.name, model=model, caches=False, shared=None, same_weights=True)
        return drafting(draft, tokens, by_position, stopping)

    return draft_tokens_change(scheme_name("self", text), WHERE, given, make)


TECHNIQUE = Technique(
    name="self",
    kind="speculation",
    summary="The target drafts for itself with some of its layer parts skipped, using its own weights and KV cache.",
    parameters={
        "attention": "share of attention parts that drafting skips",
        "mlp": "share of MLP parts that drafting skips",
        "tokens": TOKENS_HELP,
        "acceptance": ACCEPTANCE_HELP,
        "adaptive": ADAPTIVE_HELP,
    },
    formula="time per token = (verification of g + 1 tokens + g passes of the remaining parts) / E; "
    "E = 1 + a_1 + a_1 a_2 + ...; extra memory: KV cache of g tokens only",
    source=SOURCE,
    example="llmviewer analyze llama-2-13b --hardware a100 "
    "--speculative self,attention=0.5,mlp=0.25,tokens=4,acceptance=0.8",
    make=_make,
)
