"""Models trained to be smaller: nested feed-forward slices (MatFormer) and distilled students."""

from __future__ import annotations

from llmviewer.core.errors import UserError
from llmviewer.core.ir import as_built
from llmviewer.language.grammar import Number
from llmviewer.techniques.compression.narrow import narrower_feed_forward
from llmviewer.techniques.layer_settings import by_layer, layer_settings
from llmviewer.techniques.technique import Change, Technique, add_pass, refusing, unchanged

SHARE = Number("share of the feed-forward channels", 0.01, 1.0)


def _matformer(text: str) -> Change:
    """Store and run only the first `share` of the feed-forward channels, rounded to a whole number.

    Mix'n'Match gives ranges of layers shares of their own.

    Valid for models trained this way; for other models use `--prune width`.  Source: MatFormer, arXiv 2310.07707.
    """
    settings = layer_settings("--matformer", text)
    with refusing("--matformer"):
        shares = [SHARE.read("share", one.text.removeprefix("share=")) for one in settings]
    if all(share == 1.0 for share in shares):
        return unchanged
    passes = [as_built if share == 1.0 else narrower_feed_forward(share) for share in shares]
    change = by_layer("--matformer", settings, passes)
    return add_pass(f"matformer({text if len(shares) > 1 else f'{shares[0]:g}'})", lambda _: change)


def _distillation(_: str) -> Change:
    raise UserError("distillation has no option: compare teacher and student, `llmviewer compare TEACHER,STUDENT`")


MATFORMER = Technique(
    name="matformer",
    kind="compression",
    summary="Runs only the first channels of every feed-forward part, which MatFormer trains as a model of their own.",
    parameters={
        "SHARE": SHARE.help,
        "SHARE@LAYERS": "after a +: another share for these layers, counted from 0 (Mix'n'Match): 0.5+1@0-7",
    },
    formula="feed-forward FLOPs and weights x share of the intermediate channels, in whole numbers",
    source="MatFormer arXiv 2310.07707",
    example="llmviewer analyze llama-2-7b --hardware a6000 --matformer 0.5",
    make=_matformer,
)
DISTILLATION = Technique(
    name="distillation",
    kind="compression",
    summary="Trains a smaller model on the answers of a larger one; the saving is the difference between the two.",
    formula="the student's graph in the place of the teacher's: every count is that of its own config.json",
    source="arXiv 1503.02531; of language models MiniLLM arXiv 2306.08543",
    example="llmviewer compare llama-2-70b,llama-2-7b --hardware h100 --no-fit-check",
    make=_distillation,
)
