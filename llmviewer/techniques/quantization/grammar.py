"""Names of quantization schemes: `w#a#[kv#][-format ...]`, and those of published methods."""

from __future__ import annotations

import re
from dataclasses import replace

from llmviewer.core.dtypes import DTYPES, Dtype, grouped_int, plain_int, scaled
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.techniques.quantization.quantize import QuantizationScheme

SIXTEEN = DTYPES["fp16"]
#: Bits of the grammar; 16 is the model's own dtype.
BITS = (16, 8, 6, 4, 3, 2, 1)
#: Suffixes -> bits of the numbers they speak of.  Without one, numbers below 16 bit are integers.
SUFFIXES = {"fp8": 8, "fp6": 6, "fp4": 4, "mxfp4": 4, "nvfp4": 4} | {f"int{bits}": bits for bits in BITS[1:]}
#: vLLM's --kv-cache-dtype, and kv#; integers are given without their scales.
CACHE_DTYPES: dict[str, Dtype | None] = {
    "auto": None,
    "fp16": SIXTEEN,
    "bf16": SIXTEEN,
    "fp8": DTYPES["fp8"],
    "fp8_e4m3": DTYPES["fp8"],
    "fp8_e5m2": DTYPES["fp8"],
    "int8": DTYPES["int8"],
    "kv16": SIXTEEN,
} | {f"kv{bits}": plain_int(bits) for bits in BITS[1:]}

_GRAMMAR = re.compile(r"w(\d{1,3})a(\d{1,3})(?:kv(\d{1,3}))?((?:-[a-z0-9]+)*)", re.ASCII)
#: What a misspelled scheme may be near to.
_EXAMPLES = ("w4a16", "w8a16", "w8a8", "w8a8-fp8", "w4a8", "w4a8-fp8", "w4a4", "w8a8kv8", "w4a16kv8", "w8a8kv4")


def parse_scheme(text: str) -> QuantizationScheme:
    """The scheme called `text`.

    `w4a16`: stored bits of weights (scales come on top: n + 16/128 below 8 bit) and bits of the inputs of linear
    layers; `kv8`: those of the cache.  A suffix says which numbers those of as many bits are: `w8a8-fp8`, `w4a8-fp8`,
    `w4a4-nvfp4`, `w4a8kv8-int4-fp8`.  `none` leaves all as the checkpoint has it; `fp16`, `bf16` and `w16a16` bring a
    quantized checkpoint back to the model's 16-bit dtype.  Any other name is that of a published method.
    """
    name = text.strip().lower()
    match = _GRAMMAR.fullmatch(name)
    if match is None:
        return _preset(name, text)
    weights, activations, cache = (_bits(number, text) for number in match.groups()[:3])
    kinds = _kinds(match[4], (weights, activations, cache), text)
    return QuantizationScheme(
        name=name,
        weights=_stored(weights, kinds),
        activations=_in_flight(activations, kinds),
        cache=_in_flight(cache, kinds),
    )


def _preset(name: str, text: str) -> QuantizationScheme:
    from llmviewer.techniques.quantization.presets import PRESETS  # reads its file: only where such a name is asked for

    if name not in PRESETS:
        some = "none, fp8, int8, awq, gptq, mxfp4, nvfp4, bitsandbytes"
        hint = f"w#a#[kv#][-fp8|-int8|-nvfp4 ...], or one of {len(PRESETS)} names: {some} ...: docs/quantization.md"
        raise unknown("quantization", text, [*PRESETS, *_EXAMPLES], hint=hint)
    return PRESETS[name]


def parse_cache_dtype(text: str) -> Dtype | None:
    """What --kv-cache-dtype calls `text`; None for `auto`: as the checkpoint has it."""
    name = text.strip().lower()
    if name not in CACHE_DTYPES:
        raise unknown("KV cache dtype", text, CACHE_DTYPES)
    return CACHE_DTYPES[name]


def with_cache_dtype(scheme: QuantizationScheme, text: str) -> QuantizationScheme:
    """The scheme with --kv-cache-dtype `text`, which wins over kv# unless it is `auto`."""
    cache = parse_cache_dtype(text)
    return scheme if cache is None else replace(scheme, cache=cache)


def _bits(number: str | None, text: str) -> int | None:
    bits = None if number is None else int(number)
    if bits is not None and bits not in BITS:
        raise UserError(f"quantization {quoted(text)} asks for {bits} bits; allowed: {', '.join(map(str, BITS))}")
    return bits


def _kinds(suffixes: str, parts: tuple[int | None, ...], text: str) -> dict[int, str]:
    """bits -> which numbers they are, from the suffixes; integers where none speaks of them."""
    kinds: dict[int, str] = {}
    for suffix in suffixes.split("-")[1:]:
        if suffix not in SUFFIXES:
            raise unknown("suffix", suffix, SUFFIXES, where=f"quantization {quoted(text)}")
        bits = SUFFIXES[suffix]
        if bits not in parts:
            raise UserError(f"quantization {quoted(text)}: nothing in it has the {bits} bits of suffix '{suffix}'")
        if bits in kinds:
            raise UserError(f"quantization {quoted(text)}: two suffixes for {bits} bits")
        kinds[bits] = suffix
    return kinds


def _stored(bits: int | None, kinds: dict[int, str]) -> Dtype | None:
    """Weights: below 8 bits one 16-bit scale per group of 128, at 8 bits one per channel (too few to count)."""
    kind = kinds.get(bits or 0, "")
    if bits is None or bits >= 8 or kind in DTYPES:
        return _in_flight(bits, kinds)
    return scaled(kind, bits, group=128) if kind.startswith("fp") else grouped_int(bits)


def _in_flight(bits: int | None, kinds: dict[int, str]) -> Dtype | None:
    """Inputs and caches: scales per token are too few to count or, in an integer cache, depend on the head."""
    if bits is None or bits == 16:
        return SIXTEEN if bits else None
    kind = kinds.get(bits, f"int{bits}")
    return DTYPES.get(kind) or Dtype(name=kind, bits=bits, compute=kind)
