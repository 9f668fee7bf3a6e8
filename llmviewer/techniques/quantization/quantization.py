"""`--quantization`: number formats of weights, inputs of linear layers and KV cache."""

from __future__ import annotations

from llmviewer.techniques.layer_settings import AND, AT, by_layer, layer_settings
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import QuantizationScheme, quantize
from llmviewer.techniques.technique import Change, Technique, add_pass


def _make(text: str) -> Change:
    settings = layer_settings("--quantization", text)
    schemes = [parse_scheme(one.text) for one in settings]
    if all(scheme == QuantizationScheme(name=scheme.name) for scheme in schemes):
        return lambda system: system
    names = (f"{scheme.name}{AT * bool(one.ranges)}{one.ranges}" for one, scheme in zip(settings, schemes, strict=True))
    change = by_layer("--quantization", settings, [quantize(scheme) for scheme in schemes])
    return add_pass(f"quantize({AND.join(names)})", lambda _: change)


TECHNIQUE = Technique(
    name="quantization",
    kind="compression",
    summary="Stores weights, inputs of linear layers and KV cache in fewer bits; quantized inputs use faster units.",
    parameters={
        "FORMAT": "w#a#[kv#] or the name of a published method",
        "FORMAT@LAYERS": "after a +: another format for these layers, counted from 0: w4a16+w8a16@0-1/30-31",
    },
    formula="stored bits w + 16/128 below 8 bit; conversion 2 FLOP per weight and tile of 128 rows; "
    "inputs 3 FLOP per element; units of the class both operands share",
    source="GPTQ arXiv 2210.17323, AWQ arXiv 2306.00978, SmoothQuant arXiv 2211.10438",
    example="llmviewer analyze llama-2-7b --hardware a100 --quantization w4a16",
    make=_make,
)
