"""Corrections of constants that were fitted on one chip for another generation, whose kernels are other programs.

Generations with a profile of one of their chips take that chip's constants and need none.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmviewer.timing.kernels.family import Constants

#: Published efficiencies by generation, aggregated from the kernel tables of aiconfigurator
#: (https://github.com/ai-dynamo/aiconfigurator, Apache-2.0): causal FLOP of prefill over the bf16 peak at 512, 1k, 2k,
#: 4k, 8k, 16k tokens on H100 .17 .28 .43 .53 .59 .61, A100 .24 .36 .46 .52 .55 .57 (FlashAttention-2 there); a decode
#: kernel takes t0 + bytes / bandwidth x k with t0 11.7 us and k 1.09 on H100, 15 us and 1.46 on A100.
_BEFORE_HOPPER = {
    "attention_prefill": {"compute": 0.75, "tile": 2.0},
    "attention_decode": {"floor": 1.4, "memory": 0.82},
}
#: 300 to 500 of 1307 TFLOP/s on an MI300X, Triton to AITER (https://midiareshadi.github.io/blog/attn-dsl-bench/).
_CDNA = {"attention_prefill": {"compute": 0.42}, "attention_decode": {"floor": 1.3, "memory": 0.85}}
#: Generation of the target chip -> factors on constants of an H100's fits: family -> constant -> factor.
FACTORS_FROM_HOPPER: dict[str, Mapping[str, Mapping[str, float]]] = {
    "turing": _BEFORE_HOPPER,
    "volta": _BEFORE_HOPPER,
    "cdna2": _CDNA,
    "cdna3": _CDNA,
    "cdna4": _CDNA,
}
SOURCE_CHIP = "h100-sxm"
#: Constants that are fractions of a data-sheet rate; factors never raise them above 1.
FRACTIONS = ("compute", "memory", "special")


def adapt_constants(constants: Constants, family: str, fitted_on: str, generation: str) -> Constants:
    """The constants, adapted to kernels of another generation.  fitted_on: name of a chip."""
    factors = FACTORS_FROM_HOPPER.get(generation, {}).get(family) if fitted_on == SOURCE_CHIP else None
    if factors is None:
        return constants
    changed = {name: constants[name] * factor for name, factor in factors.items() if name in constants}
    return {**constants, **{name: min(value, 1.0) if name in FRACTIONS else value for name, value in changed.items()}}
