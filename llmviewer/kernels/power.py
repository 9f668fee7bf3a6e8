"""What a chip sustains of its dense peak: a large product draws more power than the card may, and the clock falls.

The best products that others measured, as a share of the data sheet, against the watts a chip has per peak TFLOP/s:
mamf-finder and its table (https://github.com/stas00/ml-engineering/tree/master/compute/accelerator): A100 SXM 267.9 of
312, H100 SXM 794.5 of 989, B200 1745 of 2250, MI250X 147 of 191.5 (one die), MI300X 781.9 of 1307;
https://github.com/mag-/gpu_benchmark: A100 PCIe 256.4 of 312, H100 PCIe 499.5 of 756, RTX 4090 178.5 of 165.
A chip of the same generation with less power for its peak sustains less, as the two H100 (and the two A100) show: its
share goes with the watts per FLOP/s to the power EXPONENT, since power grows faster than the clock.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from llmviewer.chip import Chip
from llmviewer.ir import Count

#: From H100 SXM (0.71 W per TFLOP/s: 0.80 of the peak) to H100 PCIe (0.46: 0.66).
EXPONENT = 0.45
#: No chip was seen to do better on products of many shapes.
MOST = 0.95
#: generation -> (share of the 16-bit peak that the best products sustain, W per peak TFLOP/s of the chip measured).
#: Ada: large products of an L40S (350 W) run at 0.62 of 362; the same law gives an L20 (275 W for 119.5) the 0.92 that
#: https://github.com/DefTruth/CUDA-Learn-Notes measures, and an RTX 4090 its full peak.  GA10x (Samsung 8 nm) and
#: GeForce and RTX Blackwell publish too little: the former from an A10 at half its peak, the latter as Ada.
SUSTAINED: dict[str, tuple[float, float]] = {
    "volta": (0.85, 2.40),
    "ampere": (0.86, 1.28),
    "ampere-ga10x": (0.62, 1.94),
    "ada": (0.66, 0.967),
    "hopper": (0.80, 0.7075),
    "blackwell": (0.78, 0.444),
    "blackwell-gb20x": (0.66, 0.967),
    "cdna2": (0.77, 1.46),
    "cdna3": (0.60, 0.574),
    "cdna4": (0.65, 0.608),
}
#: Of generations nobody measured.
UNKNOWN = 0.8


def sustained(chip: Chip) -> Count:
    """Share of the dense peak that large products sustain within the chip's power."""
    known = SUSTAINED.get(chip.generation)
    if known is None:
        return UNKNOWN
    if chip.tdp_w is None:
        return known[0]
    return _by_power(known, chip.tdp_w, chip.matrix_rate("bf16"))


def _by_power(known: tuple[float, float], watts: Count, flops: Count) -> Count:
    if isinstance(watts, float | int) and isinstance(flops, float | int):
        return _of_numbers(known, watts, flops)
    share, reference = known
    return np.minimum(share * (watts / (flops * 1e-12) / reference) ** EXPONENT, MOST)


@lru_cache(maxsize=64)
def _of_numbers(known: tuple[float, float], watts: float, flops: float) -> float:
    share, reference = known
    return float(min(share * (watts / (flops * 1e-12) / reference) ** EXPONENT, MOST))
