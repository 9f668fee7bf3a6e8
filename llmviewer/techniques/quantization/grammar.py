"""Parser of quantization scheme names: `w#a#[kv#][-format ...]`, or the name of a published method."""

from __future__ import annotations

import re

from llmviewer.core.dtypes import DTYPES, Dtype, grouped_int, plain_int, scaled
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.techniques.quantization.quantize import QuantizationScheme

SIXTEEN = DTYPES["fp16"]
#: Bit widths that a scheme name may contain; 16 is the model's own dtype.
BITS = (16, 8, 6, 4, 3, 2, 1)
#: Format suffix -> the bit width it applies to.  Without a suffix, numbers below 16 bits are integers.
SUFFIXES = {"fp8": 8, "fp6": 6, "fp4": 4, "mxfp4": 4, "nvfp4": 4} | {f"int{bits}": bits for bits in BITS[1:]}
#: Values of --kv-cache-dtype (vLLM's names and kv#) -> dtype; integer dtypes do not include their scales yet.
CACHE_DTYPES: dict[str, Dtype | None] = {
    "auto": None,
    "fp32": DTYPES["fp32"],
    "fp16": SIXTEEN,
    "bf16": SIXTEEN,
    "fp8": DTYPES["fp8"],
    "fp8_e4m3": DTYPES["fp8"],
    "fp8_e5m2": DTYPES["fp8"],
    "int8": DTYPES["int8"],
    "kv16": SIXTEEN,
} | {f"kv{bits}": plain_int(bits) for bits in BITS[1:]}

#: Formats of llama.cpp's cache (-ctk, -ctv) -> bits per value: those of a block of 32 values with its 16-bit scale, and
#: its 16-bit minimum in *_1.  Source: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h
GGML_CACHE_BITS = {"q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0, "q4_0": 4.5, "iq4_nl": 4.5}
CACHE_DTYPES |= {
    **{
        name: Dtype(name=name, bits=bits, compute="int8" if bits > 5.0 else "int4")
        for name, bits in GGML_CACHE_BITS.items()
    },
    **{"f16": SIXTEEN, "f32": DTYPES["fp32"]},
}

_KEYS_AND_VALUES = re.compile(
    r"k(\d{1,3}|[a-z]{1,2}\d{1,2}(?:_\w{1,2})?)v(\d{1,3}|[a-z]{1,2}\d{1,2}(?:_\w{1,2})?)", re.ASCII
)
_GRAMMAR = re.compile(r"w(\d{1,3})a(\d{1,3})(?:kv(\d{1,3}))?((?:-[a-z0-9]+)*)", re.ASCII)
#: Schemes suggested for a misspelled name, in addition to the presets.
_EXAMPLES = ("w4a16", "w8a16", "w8a8", "w8a8-fp8", "w4a8", "w4a8-fp8", "w4a4", "w8a8kv8", "w4a16kv8", "w8a8kv4")
#: Names that other programs have for schemes.
_ELSEWHERE = {
    **dict.fromkeys(("int4", "4bit", "4-bit", "w4", "q4"), "w4a16"),
    **dict.fromkeys(("8bit", "8-bit", "w8", "q8"), "w8a16"),
    "fp4": "nvfp4",
}


def parse_scheme(text: str) -> QuantizationScheme:
    """Parse the name of a quantization scheme.

    `w4a16`: bits of stored weights (scales are added: n + 16/128 below 8 bits) and bits of the inputs of linear
    layers; `kv8`: bits of the KV cache.  A suffix sets the number format of its bit width: `w8a8-fp8`, `w4a8-fp8`,
    `w4a4-nvfp4`, `w4a8kv8-int4-fp8`.  `none` keeps the formats of the checkpoint; `fp16`, `bf16` and `w16a16` convert a
    quantized checkpoint back to the model's 16-bit dtype.  Other names are looked up among the published methods.
    """
    name = text.strip().lower()
    match = _GRAMMAR.fullmatch(name)
    if match is None:
        return _preset(name, text)
    weights, activations, cache = (_bits(number, text) for number in match.groups()[:3])
    formats = _formats(match[4], (weights, activations, cache), text)
    return QuantizationScheme(
        name=name,
        weights=_weight_dtype(weights, formats),
        activations=_unscaled_dtype(activations, formats),
        cache=_unscaled_dtype(cache, formats),
    )


def _preset(name: str, text: str) -> QuantizationScheme:
    from llmviewer.techniques.quantization.presets import PRESETS  # reads a YAML file: only if a preset is requested

    if name not in PRESETS:
        examples = "none, fp8, int8, awq, gptq, mxfp4, nvfp4, bitsandbytes"
        listed = "`llmviewer techniques show quantization` lists them"
        hint = f"w#a#[kv#][-fp8|-int8|-nvfp4 ...], or one of {len(PRESETS)} names: {examples} ...; {listed}"
        raise unknown("quantization", text, [*PRESETS, *_EXAMPLES], hint=hint, elsewhere=_ELSEWHERE)
    return PRESETS[name]


def parse_cache_dtype(text: str) -> Dtype | None:
    """Parse a value of --kv-cache-dtype; None for `auto`, which keeps the dtype of the checkpoint."""
    name = text.strip().lower()
    if name not in CACHE_DTYPES:
        raise unknown(
            "KV cache dtype", text, CACHE_DTYPES, hint="or those of keys and of values, as in k8v4, kq8_0vf16"
        )
    return CACHE_DTYPES[name]


def parse_cache_scheme(text: str) -> QuantizationScheme:
    """Parse a setting of --kv-cache-dtype: a name of `parse_cache_dtype`, or that of keys and of values.

    A number in place of one of these two names is its bits: k8v4, kq8_0vf16.
    """
    pair = _KEYS_AND_VALUES.fullmatch(text.strip().lower())
    if pair is None:
        return QuantizationScheme(name="cache", cache=parse_cache_dtype(text))
    names = (f"kv{_bits(one, text, 'KV cache dtype')}" if one.isdigit() else one for one in pair.groups())
    keys, values = map(parse_cache_dtype, names)
    return QuantizationScheme(name="cache", cache=keys, values=values)


def _bits(number: str | None, text: str, noun: str = "quantization") -> int | None:
    bits = None if number is None else int(number)
    if bits is not None and bits not in BITS:
        raise UserError(f"{noun} {quoted(text)} asks for {bits} bits; allowed: {', '.join(map(str, BITS))}")
    return bits


def _formats(suffixes: str, widths: tuple[int | None, ...], text: str) -> dict[int, str]:
    """Map each bit width that has a suffix to its number format; `widths` are those used in the scheme."""
    formats: dict[int, str] = {}
    for suffix in suffixes.split("-")[1:]:
        if suffix not in SUFFIXES:
            raise unknown("suffix", suffix, SUFFIXES, where=f"quantization {quoted(text)}")
        bits = SUFFIXES[suffix]
        if bits not in widths:
            raise UserError(f"quantization {quoted(text)}: suffix '{suffix}' is for {bits}-bit parts and there is none")
        if bits in formats:
            raise UserError(f"quantization {quoted(text)}: two suffixes for {bits} bits")
        formats[bits] = suffix
    return formats


def _weight_dtype(bits: int | None, formats: dict[int, str]) -> Dtype | None:
    """Dtype of stored weights: a 16-bit scale per group of 128 below 8 bits; scales per channel are not counted."""
    name = formats.get(bits or 0, "")
    if bits is None or bits >= 8 or name in DTYPES:
        return _unscaled_dtype(bits, formats)
    return scaled(name, bits, group=128) if name.startswith("fp") else grouped_int(bits)


def _unscaled_dtype(bits: int | None, formats: dict[int, str]) -> Dtype | None:
    """Dtype of activations and cache without scales: per token they are negligible, in an integer cache they depend
    on the head width and are added later."""
    if bits is None or bits == 16:
        return SIXTEEN if bits else None
    name = formats.get(bits, f"int{bits}")
    return DTYPES.get(name) or Dtype(name=name, bits=bits, compute=name)
