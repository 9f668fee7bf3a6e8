"""One decoder layer of a traced pass: its parts, and the places of its norms by which tensor each one reads."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from llmviewer.layers.decoder import DecoderLayer, Norms, Residual
from llmviewer.models.parts import group_layers
from llmviewer.tracing import parts
from llmviewer.tracing.feed_forward import feed_forward
from llmviewer.tracing.parts import Trace

if TYPE_CHECKING:
    from llmviewer.tracing.recorder import Call


def layers(trace: Trace, stack: str, count: int) -> tuple[DecoderLayer, ...]:
    """The layers of a module list, equal ones grouped."""
    read = [_layer(trace, f"{stack}.{number}") for number in range(count)]
    kinds = [repr(_comparable(layer)) for layer in read]
    names = {kind: f"layer_{at}" for at, kind in enumerate(dict.fromkeys(kinds))}

    def build(kind: str, repeats: int) -> DecoderLayer:
        name = names[kind] if len(names) > 1 else "layer"
        return replace(read[kinds.index(kind)], name=name, repeats=repeats)

    return group_layers(kinds, build)


def _comparable(layer: DecoderLayer) -> object:
    """The figures of a layer that tell kinds apart."""
    places = ("attn", "attn_post", "mlp", "mlp_post")
    norms = [(place, one.kind, one.width, one.parameters) for place in places if (one := getattr(layer.norms, place))]
    return layer.mixer, layer.feed_forward, layer.residual, layer.residual_flops, norms


def _layer(trace: Trace, name: str) -> DecoderLayer:
    """The layer of a module with one attention and one feed-forward part."""
    mixers = [one for one in trace.recorder.attention if one.startswith(f"{name}.")]
    if len(mixers) != 1:
        own = type(trace.recorder.model.get_submodule(name)).__name__
        trace.refuse(name, f"{own} calls the library's attention function from {len(mixers)} modules")
    inside = trace.under(name)
    mixer = [call for call in inside if call.name == mixers[0] or call.name.startswith(f"{mixers[0]}.")]
    rest = [call for call in inside if call not in mixer and call.name != name]
    norms = [call for call in rest if parts.is_norm(call)]
    others = [call for call in rest if call not in norms]
    root = _root([call.name for call in others if any(True for _ in call.module.parameters(recurse=False))])
    if not root:
        trace.refuse(name, "it has no feed-forward part")
    part = [call for call in others if call.name == root or call.name.startswith(f"{root}.")]
    ends = _ends(part, root) if root != name else (others[0].reads[0], others[-1].makes)
    placed, residual = _places(trace, norms, (inside[-1], mixer[-1]), ends)
    multiplied = trace.recorder.operations[name, "mul"] > 0
    return DecoderLayer(
        name=name,
        repeats=1,
        norms=placed,
        mixer=parts.attention(trace, mixers[0]),
        feed_forward=feed_forward(trace, root, part),
        residual=residual,
        residual_flops=1.0 + multiplied,
    )


def _root(names: list[str]) -> str:
    """The innermost module that holds all of `names`."""
    shared = zip(*(one.split(".") for one in names), strict=False)
    return ".".join(words[0] for words in takewhile(lambda words: len(set(words)) == 1, shared))


def _ends(part: list[Call], root: str) -> tuple[int, int]:
    """Storages of what the feed-forward part reads and makes."""
    whole = next((call for call in part if call.name == root), part[-1])
    return whole.reads[0], whole.makes


def _places(
    trace: Trace, found: list[Call], around: tuple[Call, Call], ends: tuple[int, int]
) -> tuple[Norms, Residual]:
    """The norms of a layer by the data flow, and whether both parts read the layer's input."""
    layer, mixer = around
    placed: dict[str, Call] = {}
    for call in found:
        read = call.reads[0]
        if call.makes == mixer.reads[0]:
            place = "attn"
        elif read == mixer.makes:
            place = "attn_post"
        elif call.makes == ends[0]:
            place = "mlp"
        elif read == ends[1]:
            place = "mlp_post"
        else:
            trace.refuse(call.name, "the norm stands neither before nor after attention or the feed-forward part")
        if place in placed:
            trace.refuse(call.name, f"a second norm as {placed[place].name}")
        placed[place] = call
    before = placed.get("attn")
    shared = before is not None and before.makes == ends[0]
    parallel = shared or ("mlp" in placed and placed["mlp"].reads[0] == layer.reads[0])
    if before is not None and before.reads[0] != layer.reads[0]:
        trace.refuse(before.name, "it does not read the layer's input")
    words = {"attn": "attn_norm", "mlp": "mlp_norm"}
    if "attn_post" in placed or "mlp_post" in placed:
        words |= {side: f"{words[at]}" for at, side in (("attn", "attn_post"), ("mlp", "mlp_post"))}
        words |= {side: f"{at}_post_norm" for at, side in (("attn", "attn_post"), ("mlp", "mlp_post")) if at in placed}
    norms = Norms(**{place: parts.norm(trace, call, words[place]) for place, call in placed.items()})
    return norms, Residual.PARALLEL if parallel else Residual.SEQUENTIAL
