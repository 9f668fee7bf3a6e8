"""`--kv-cache-dtype`: the cache in fewer bits, whatever the weights are."""

from __future__ import annotations

from llmviewer.techniques.quantization.grammar import parse_cache_dtype
from llmviewer.techniques.quantization.quantize import QuantizationScheme, quantize
from llmviewer.techniques.technique import Change, Technique, adding


def _make(text: str) -> Change:
    cache = parse_cache_dtype(text)
    if cache is None:
        return lambda system: system
    scheme = QuantizationScheme(name=f"{cache.name} cache", cache=cache)
    return adding(f"quantize({scheme.name})", lambda _: quantize(scheme))


TECHNIQUE = Technique(
    name="kv_cache_dtype",
    kind="compression",
    summary="Keeps keys, values and latents in fewer bits; attention computes in 16 bit.",
    formula="integers n + 32/head_dim bits per element, fp8 8 bits; wins over kv# of --quantization",
    source="KIVI arXiv 2402.02750; vLLM --kv-cache-dtype, https://docs.vllm.ai/en/latest/features/quantization/",
    example="llmviewer analyze llama-2-7b --hardware h100 --input-len 3072 --kv-cache-dtype fp8",
    make=_make,
)
