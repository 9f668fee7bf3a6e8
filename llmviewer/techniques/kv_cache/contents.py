"""Contents of the KV cache: number format, cached prefixes."""

from __future__ import annotations

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, unknown
from llmviewer.core.ir import as_built
from llmviewer.techniques.layer_settings import by_layer, layer_settings
from llmviewer.techniques.quantization.grammar import parse_cache_scheme
from llmviewer.techniques.quantization.quantize import quantize
from llmviewer.techniques.technique import Change, Parameter, Technique, add_pass, change_kv_cache, parse_numbers

_HIT_RATE = Parameter(name="hit_rate", high=1.0)
#: Last word of --prefix-cache: the prefix is the same for the whole batch, and with CASCADE read once for it.
SHARED, CASCADE = "shared", "cascade"


def _dtype(text: str) -> Change:
    settings = layer_settings("--kv-cache-dtype", text)
    schemes = [parse_cache_scheme(one.text) for one in settings]
    if all(one.cache is None for one in schemes):
        return lambda system: system
    passes = [as_built if one.cache is None else quantize(one) for one in schemes]
    change = by_layer("--kv-cache-dtype", settings, passes)
    alone = schemes[0].cache if len(settings) == 1 and schemes[0].values is None else None
    name = text if alone is None else alone.name
    return add_pass(f"quantize({name} cache)", lambda _: change)


def _prefix(text: str) -> Change:
    """Prefill only the tokens that are not cached; their attention also reads the cached keys and values.

    floor(rate S) of S prompt tokens are cached, in whole pages, and never the last one because its logits are needed.
    Recurrent layers find the state at the end of the prefix.  `shared`: all sequences of the batch have the same
    prefix, which is stored once; each sequence still reads it.  `cascade`: it is stored once and read once, by a kernel
    of its own.  Otherwise every sequence stores its own prefix.
    """
    words = [word.strip() for word in text.split(",")]
    cascade = len(words) > 1 and words[-1] == CASCADE
    shared = cascade or (len(words) > 1 and words[-1] == SHARED)
    if len(words) > 1 and not shared and "=" not in words[-1]:
        raise unknown("parameter of --prefix-cache", words[-1], (SHARED, CASCADE))
    rate = parse_numbers("--prefix-cache", ",".join(words[:-1] if shared else words), (_HIT_RATE,))["hit_rate"]
    if not rate:
        return lambda system: system
    name = f"prefix_cache({rate:g}{f', {words[-1]}' if shared else ''})"
    cached = change_kv_cache(name, hit_rate=rate, shared=shared, cascade=cascade)

    def change(system: System) -> System:
        if shared and system.kv_cache.reserves:
            raise UserError(f"--prefix-cache {words[-1]}: contiguous reservations (--kv-reserve) cannot share a prefix")
        return cached(system)

    return change


DTYPE = Technique(
    name="kv_cache_dtype",
    kind="compression",
    summary="Stores keys, values and latents in fewer bits; attention computes in 16 bits.",
    parameters={
        "FORMAT": "auto, fp8, int8, kv4 ..., or bits of keys and of values: k8v4",
        "FORMAT@LAYERS": "after a +: another format for these layers, counted from 0: k4v2+kv8@0-1/30-31 (KVTuner)",
    },
    formula="integers n + 32/head_dim bits per element, fp8 8 bits; wins over kv# of --quantization",
    source="KIVI arXiv 2402.02750; KVTuner arXiv 2502.04420; vLLM --kv-cache-dtype, "
    "https://docs.vllm.ai/en/latest/features/quantization/",
    example="llmviewer analyze llama-2-7b --hardware h100 --input-len 3072 --kv-cache-dtype fp8",
    make=_dtype,
)
PREFIX = Technique(
    name="prefix_cache",
    kind="kv cache",
    summary="Prefills only the prompt tokens that are not in the KV cache; a common prefix can be stored once.",
    parameters={
        "hit_rate": "share of every prompt that is in the cache",
        "shared": "without a value: the prefix is the same for the whole batch and stored once",
        "cascade": "without a value: it is stored once, and read once by a kernel for the queries of all sequences",
    },
    formula="cached = min(floor(rate S), S - 1) in whole pages, new = S - cached; pairs new cached + "
    "new (new + 1) / 2; shared: cache of batch (context - cached) + cached tokens; cascade: as many keys are read, and "
    "2 (d_v + 2) fp32 per query and head are written and merged",
    source="vLLM automatic prefix caching, https://docs.vllm.ai/en/latest/design/prefix_caching/; RadixAttention "
    "arXiv 2312.07104; cascade: https://flashinfer.ai/2024/02/02/cascade-inference.html, Hydragen arXiv 2402.05099",
    example="llmviewer analyze llama-2-7b --hardware a100 --input-len 2048 --prefix-cache 0.5",
    make=_prefix,
)
