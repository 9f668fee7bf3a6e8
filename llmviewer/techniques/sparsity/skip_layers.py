"""`--skip-layers`: every step skips a share of the layers."""

from __future__ import annotations

from llmviewer.core.ir import Pass
from llmviewer.techniques.scaling import map_operators, sometimes
from llmviewer.techniques.technique import Change, Parameter, Technique, add_pass, parse_numbers

_SHARE = Parameter(name="share", low=0.0, high=0.99)


def skip_layers(share: float) -> Pass:
    """Run 1 - `share` of the layers of every kind in every step; work, traffic and time fall in proportion.

    Prefill skips layers like decode.  The skipped layers may differ between steps, so weights and cache stay stored.
    Source: LLM inference unveiled, arXiv 2402.16363, section 4.1; LayerSkip's layer dropout,
    arXiv 2404.16710.
    """
    if share == 0.0:
        return lambda graph: graph
    kept = 1.0 - share
    return lambda graph: graph.map_blocks(
        lambda block: map_operators(block, lambda operator: sometimes(operator, kept)) if block.is_layer else block
    )


def _make(text: str) -> Change:
    share = parse_numbers("--skip-layers", text, (_SHARE,))["share"]
    if share == 0.0:
        return lambda system: system
    return add_pass(f"skip_layers({share:g})", lambda _: skip_layers(share))


TECHNIQUE = Technique(
    name="skip_layers",
    kind="sparsity",
    summary="Skips a share of the layers in every step, including prefill; their work falls in proportion.",
    formula="work and traffic of every layer x (1 - share); weights and cache stay stored",
    source="survey arXiv 2402.16363, section 4.1; LayerSkip arXiv 2404.16710",
    example="llmviewer analyze llama-2-7b --hardware a6000 --skip-layers 0.25",
    make=_make,
)
