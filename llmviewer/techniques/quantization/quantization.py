"""`--quantization`: number formats of weights, inputs of linear layers and KV cache."""

from __future__ import annotations

from collections.abc import Sequence

from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.ir import Graph, Pass
from llmviewer.formats.checkpoint import alike
from llmviewer.techniques.layer_settings import (
    AND,
    AT,
    BUDGET,
    EVERY,
    OR,
    LayerSetting,
    by_layer,
    layer_settings,
    ranges_of,
)
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import QuantizationScheme, quantize
from llmviewer.techniques.technique import Change, Technique, add_pass

WHERE = "--quantization"


def _make(text: str) -> Change:
    if text.startswith(BUDGET):
        raise UserError(
            f"{WHERE} {quoted(text)}: a budget is for one model; here allowed: formats, as in w2a16+w3a16@0-7"
        )
    settings = layer_settings(WHERE, text)
    schemes = [parse_scheme(one.text) for one in settings]
    if all(scheme == QuantizationScheme(name=scheme.name) for scheme in schemes):
        return lambda system: system
    names = (f"{scheme.name}{AT * bool(one.ranges)}{one.ranges}" for one, scheme in zip(settings, schemes, strict=True))
    by_matrix = any(one.matrices for one in settings)
    change = (
        _by_matrix(settings, schemes) if by_matrix else by_layer(WHERE, settings, [quantize(one) for one in schemes])
    )
    caveats = "; ".join(dict.fromkeys(scheme.caveat for scheme in schemes if scheme.caveat))
    return add_pass(f"quantize({AND.join(names)})", lambda _: change, caveats)


def _by_matrix(settings: Sequence[LayerSetting], schemes: Sequence[QuantizationScheme]) -> Pass:
    """The pass that gives every layer the scheme of its range, and operators in it those that name them.

    Layers whose operators all have the same schemes become one block.
    """
    for one, scheme in zip(settings, schemes, strict=True):
        if one.matrices and not scheme.is_of_products:
            raise UserError(f"{WHERE}: {quoted(scheme.name)} is for more than operators; allowed there: w#a#")

    def of_layer(number: int) -> tuple[int, frozenset[tuple[str, int]]]:
        whole = next((at for at, one in enumerate(settings) if number in one.layers), 0)
        named = (
            (name, at) for at, one in enumerate(settings) for layer, name in one.matrices if layer in (number, EVERY)
        )
        return whole, frozenset(named)

    def changed(graph: Graph) -> Graph:
        layers = layer_numbers([block for block in graph.blocks if block.is_layer])
        kinds = alike(sorted(number for numbers in layers for number in numbers), of_layer)
        kinds.sort(key=lambda kind: kind[0][0] != 0)  # the rest of the graph has the first setting
        if kinds and kinds[0][0][0] != 0:
            kinds.insert(0, ((0, frozenset()), []))
        parts, passes = [], []
        for at, ((whole, named), numbers) in enumerate(kinds):
            ranges = OR.join(ranges_of(numbers))
            parts.append(LayerSetting(text="", layers=frozenset(numbers if at else ()), ranges=ranges if at else ""))
            passes.append(quantize(schemes[whole], {name: schemes[index] for name, index in named}))
        return by_layer(WHERE, parts, passes)(graph)

    return changed


TECHNIQUE = Technique(
    name="quantization",
    kind="compression",
    summary="Stores weights, inputs of linear layers and KV cache in fewer bits; quantized inputs use faster units.",
    parameters={
        "FORMAT": "w#a#[kv#] or the name of a published method",
        "FORMAT@LAYERS": "after a +: another format for these layers, counted from 0: w4a16+w8a16@0-1/30-31",
        "FORMAT@OPERATORS": "after a +: for operators, in all layers or in ranges: w4a16+w8a16@down_proj/0-3.q_proj",
        "budget": "bits of a weight on average, the formats to choose from, and a file of their errors: "
        "budget=2.75:w2a16/w3a16/w4a16:errors.yaml (LQ-LoRA); without a file all weights count alike",
    },
    formula="stored bits w + 16/128 below 8 bit; conversion 2 FLOP per weight and tile of 128 rows; "
    "inputs 3 FLOP per element; units of the class both operands share; a budget: least sum of errors, exactly, "
    "subject to sum(weights x bits) <= budget x weights of the linear layers",
    source="GPTQ arXiv 2210.17323, AWQ arXiv 2306.00978, SmoothQuant arXiv 2211.10438; budget: LQ-LoRA arXiv "
    "2311.12023, section 3.2",
    example="llmviewer analyze llama-2-7b --hardware a100 --quantization w4a16",
    make=_make,
)
