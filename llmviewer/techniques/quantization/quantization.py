"""`--quantization`: number formats of weights, inputs of linear layers and KV cache."""

from __future__ import annotations

from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import QuantizationScheme, quantize
from llmviewer.techniques.technique import Change, Technique, add_pass


def _make(text: str) -> Change:
    scheme = parse_scheme(text)
    if scheme == QuantizationScheme(name=scheme.name):
        return lambda system: system
    return add_pass(f"quantize({scheme.name})", lambda _: quantize(scheme))


TECHNIQUE = Technique(
    name="quantization",
    kind="compression",
    summary="Stores weights, inputs of linear layers and KV cache in fewer bits; quantized inputs use faster units.",
    formula="stored bits w + 16/128 below 8 bit; conversion 2 FLOP per weight and tile of 128 rows; "
    "inputs 3 FLOP per element; units of the class both operands share",
    source="GPTQ arXiv 2210.17323, AWQ arXiv 2306.00978, SmoothQuant arXiv 2211.10438",
    example="llmviewer analyze llama-2-7b --hardware a100 --quantization w4a16",
    make=_make,
)
