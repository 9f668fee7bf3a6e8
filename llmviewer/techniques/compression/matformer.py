"""`--matformer`: a nested slice of every feed-forward part."""

from __future__ import annotations

from llmviewer.techniques.compression.narrow import narrower_feed_forward
from llmviewer.techniques.technique import Change, Parameter, Technique, adding, numbers

_SHARE = Parameter(name="share", low=0.01, high=1.0)


def _make(text: str) -> Change:
    """MatFormer trains the first channels of every feed-forward part to work alone; a slice is a model of its own.

    The slice alone is stored and run: `share` of the intermediate channels, to a whole number.
    Source: arXiv 2310.07707.  Valid for models trained so; for others it is `--prune width`.
    """
    share = numbers("--matformer", text, (_SHARE,))["share"]
    if share == 1.0:
        return lambda system: system
    return adding(f"matformer({share:g})", lambda _: narrower_feed_forward(share))


TECHNIQUE = Technique(
    name="matformer",
    kind="compression",
    summary="Runs the first channels of every feed-forward part, which MatFormer trains to work alone.",
    formula="feed-forward FLOPs and weights x share of the intermediate channels, in whole numbers",
    source="MatFormer arXiv 2310.07707",
    example="llmviewer analyze llama-2-7b --hardware a6000 --matformer 0.5",
    make=_make,
)
