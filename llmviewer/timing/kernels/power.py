"""Rates that a chip sustains: its clocks and units, peaks under its power limit, and its last-level cache."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.hardware.chip import Chip

#: Clock of chips that publish none [Hz].
DEFAULT_CLOCK_HZ = 1.7e9
#: Clock of an H100 SXM [Hz], on which times of single instructions and of a unit's tasks are stated.
H100_CLOCK_HZ = 1.98e9
#: Units of an A100, and its memory bandwidth per unit and clock [byte]; the 132 units of an H100 get 12.8.
A100_UNITS, A100_BYTES_PER_CLOCK = 108.0, 13.4
#: Limits for units that work on tiles or rows like a streaming multiprocessor or a CPU core: 16-bit FLOP/s of a unit,
#: and units of a chip.  The core of a TPU v5e does 197 TFLOP/s, an SM of a B200 15; a Cerebras has 900,000 units.
#: Chips beyond the limits count as A100_UNITS.
MAX_UNIT_FLOPS_PER_S, MAX_UNITS = 50e12, 1024.0


def clock_hz(chip: Chip) -> Count:
    """Boost clock of the vector units [Hz]."""
    clock = chip.clock_hz if chip.vector_clock_hz is None else chip.vector_clock_hz
    return DEFAULT_CLOCK_HZ if clock is None else clock


def h100_cycle(chip: Chip) -> Count:
    """Time of a cycle over that of an H100: factor on times in which a unit waits for its own instructions."""
    return H100_CLOCK_HZ / clock_hz(chip)


def has_sm_like_units(chip: Chip) -> bool:
    """Whether the chip's units are known and work on tiles or rows like streaming multiprocessors."""
    if chip.units is None or np.max(chip.units) > MAX_UNITS:
        return False
    rates = chip.real.matrix_flops_per_s
    return all(np.max(rates[name] / chip.units) <= MAX_UNIT_FLOPS_PER_S for name in ("bf16", "fp16") if name in rates)


@lru_cache(maxsize=64)
def units_of(chip: Chip) -> Count:
    """Units that work in parallel; an A100's if the chip's are unknown or of another kind."""
    return chip.units if chip.units is not None and has_sm_like_units(chip) else A100_UNITS


#: 16-bit FLOP per clock that the tensor cores of a generation's unit do where nothing is cut: 4 of 512 on A100, 4 of
#: 1024 on H100, 4 of 256 on GA102 and AD102 (fp16 accumulation on GeForce; white papers, `hardware_specs/`).
UNIT_FLOPS_PER_CLOCK = {
    "ampere": 2048.0, "ampere-ga10x": 1024.0, "ada": 1024.0, "hopper": 4096.0, "blackwell-gb20x": 1024.0,
}  # fmt: skip


@lru_cache(maxsize=64)
def uncut(chip: Chip) -> Count:
    """Full rate of the chip's tensor cores over the rate that its maker leaves them: 2 on GeForce, L20 and L40, else 1.

    What feeds the units is not cut: registers, shared memory and L2 are those of the full chip.
    """
    real, full = chip.real, UNIT_FLOPS_PER_CLOCK.get(chip.generation)
    if full is None or real.units is None or real.clock_hz is None:
        return 1.0
    cut: Count = np.maximum(np.round(full * real.units * real.clock_hz / real.matrix_rate("bf16")), 1.0)
    return cut if np.any(cut > 1.0) else 1.0


@lru_cache(maxsize=64)
def units_and_clock(chip: Chip) -> tuple[Count, Count]:
    """(units, clock [Hz]); if unknown or of another kind, an A100's units, clocked to match the chip's bandwidth."""
    clock = chip.clock_hz if chip.vector_clock_hz is None else chip.vector_clock_hz
    if clock is None or not has_sm_like_units(chip):
        return A100_UNITS, chip.real.bandwidth_bytes_per_s / (A100_UNITS * A100_BYTES_PER_CLOCK)
    return units_of(chip), clock


#: Large products exceed the power limit, and the clock falls.  By generation: the fraction of the 16-bit peak at which
#: the fitted constant `compute` of a good library is 1, W per peak TFLOP/s of the chip that was measured, and the
#: largest fraction with more power.  Constants of a donor multiply it, so it is no single product's best.
#: mamf-finder (https://github.com/stas00/ml-engineering/tree/master/compute/accelerator): A100 SXM 267.9 of 312, H100
#: SXM 794.5 of 989, GH200 821, B200 1745 of 2250 at best, MI250X 147 of 191.5 (one die), MI300X 781.9 of 1307.
#: https://github.com/mag-/gpu_benchmark: A100 PCIe 256.4, H100 PCIe 499.5 of 756, RTX 4090 178.5 of 165.
#: https://github.com/ai-dynamo/aiconfigurator: with these fractions `compute` of SGLang, TensorRT-LLM and vLLM is 0.94
#: to 1.07 on A100, 0.99 to 1.03 on H100, 0.98 to 1.02 on B200 (1420 to 1500 of 2250, medians beyond 1 TFLOP), 0.86 to
#: 1.01 on L40S and 1.00 to 1.05 on RTX PRO 6000.
#: https://github.com/zzc0721/torch-performance-test-data (issues 185, 46, 126, 140): torch reaches 108 to 119 of 150 on
#: an A40 at 4096 to 10240, 120 of 155 on an A6000, 62 to 69 of 70 on an A10G, 89 to 97 of 125 on a V100.  Torch on an
#: A100, whose `compute` is 0.86, reaches 232 to 245 of 312: the same part of 0.86 on an A40.  CDNA 4 is an estimate.
#: A TITAN RTX (issue 127 there; 130.5 TFLOP/s, 280 W) reaches 66 at 2048 and then, throttled, 40 to 54.
SUSTAINED: dict[str, tuple[float, float, float]] = {
    "volta": (0.85, 2.40, 0.88),
    "turing": (0.38, 2.15, 0.75),
    "ampere": (0.86, 1.06, 0.86),
    "ampere-ga10x": (0.86, 1.97, 0.97),
    "ada": (0.63, 0.967, 0.95),
    "hopper": (0.80, 0.7075, 0.83),
    "blackwell": (0.73, 0.444, 0.85),
    "blackwell-gb20x": (0.78, 1.25, 0.90),
    "cdna2": (0.77, 1.46, 0.80),
    "cdna3": (0.60, 0.574, 0.70),
    "cdna4": (0.65, 0.608, 0.70),
}
#: Fraction for generations without measurements.
DEFAULT_SUSTAINED = 0.8
#: Exponent of the sustained fraction in watts per FLOP/s, as power grows faster than the clock: from H100 SXM (0.71 W
#: per TFLOP/s: 0.80) to H100 PCIe (0.46: 0.66); it also yields the 0.92 of its peak that an L20 reaches in
#: https://github.com/DefTruth/CUDA-Learn-Notes.
EXPONENT = 0.45
#: Power per FLOP, over that of the chip measured, from which no limit binds because the maker cut the tensor cores, and
#: the fraction of the peak that products then sustain.  SGLang's prompts of thousands of tokens need 0.94 to 0.96 on an
#: H20 and 0.97 on an L20 (https://github.com/zksainx/pipeweave); an A10G reaches 62 to 69 of 70 (SUSTAINED).
ROOM, CUT_SUSTAINED = 2.0, 0.97
#: W per TFLOP/s that boards need for seconds in a row, and which boards of Ada do: 116 TFLOP/s of an L20 (275 W) and
#: 100 of an L40 (300 W) in SGLang's prompts of 8 s (https://github.com/zksainx/pipeweave) are 2.4 and 3.0; an RTX 4090
#: 2.5 (178.5 at 450 W, https://github.com/mag-/gpu_benchmark).  Not the L40S, whose own rows were timed for
#: milliseconds, nor GeForce, whose power suffices for the rate that is left to it.
STEADY, STEADY_BOARDS = 2.4, ("l4", "l20", "l40", "rtx-6000-ada")
#: Fraction of the board power that reading memory at full rate needs; under a lower power limit the rate falls with it.
#: RTX 3090 (GDDR6X): decode slows down below 280 to 290 of 350 W, 4090: below 270 of 450 W, 5090: below 380 of 575 W.
#: Source: https://github.com/noonghunna/club-3090/blob/master/docs/HARDWARE.md (sweeps in steps of 10 W), and
#: https://jeanfbrito.github.io/posts/rtx-3090-power-limit-sweet-spot/.  Boards with HBM: none known (Splitwise).
READING_POWER = {"ampere-ga10x": 0.80, "ada": 0.60, "blackwell-gb20x": 0.66}
#: Bytes that a unit requests per clock; the more bandwidth a unit has, the smaller the fraction that it can use: large
#: weights reach 0.83 of an H100's bandwidth and 0.78 of an H200's (the same units, 1.43 times the bandwidth).
REQUESTED_PER_CLOCK = 100.0
#: Fraction of the bandwidth for chips whose units or clock are unknown, or with few large units that request more.
DEFAULT_REACHABLE = 0.88
#: Fraction of the bandwidth that error correction in GDDR6 leaves on server cards, where it is on by default; on
#: workstation cards and GeForce it is off (https://support.chaos.com/hc/en-us/articles/24886637113617).  WORKSTATION:
#: beginnings of their names.
ECC_SHARE = 0.93
WORKSTATION = ("rtx", "a6000")
ECC_GENERATIONS = frozenset(("ada", "ampere-ga10x", "turing"))


@lru_cache(maxsize=64)
def sustained_share(chip: Chip) -> Count:
    """Fraction of the dense peak that large products sustain within the chip's power limit."""
    return unlimited_share(chip) * clock_share(chip)


def unlimited_share(chip: Chip) -> Count:
    """`sustained_share` at the board's own power, of products of milliseconds."""
    return np.where(has_room(chip), CUT_SUSTAINED, usual_share(chip))


def usual_share(chip: Chip) -> Count:
    """`unlimited_share` as if no tensor cores were cut: that of kernels for few rows."""
    share, reference, most = SUSTAINED.get(chip.generation, (DEFAULT_SUSTAINED, 0.0, DEFAULT_SUSTAINED))
    if chip.tdp_w is None or not reference:
        return share
    return np.minimum(share * (_watts_per_teraflop(chip) / reference) ** EXPONENT, most)


def _watts_per_teraflop(chip: Chip) -> Count:
    """Board power over the dense 16-bit peak [W per TFLOP/s]; 0 if unknown."""
    return 0.0 if chip.tdp_w is None else chip.tdp_w / (chip.real.matrix_rate("bf16") * 1e-12)


@lru_cache(maxsize=64)
def has_room(chip: Chip) -> Any:
    """Whether tensor cores are cut so far that the power limit lets them run at their full rate."""
    reference = SUSTAINED.get(chip.generation, (0.0, np.inf, 0.0))[1]
    cut = chip.units is None or uncut(chip) > 1.0  # without published units the power alone tells
    return (_watts_per_teraflop(chip) >= ROOM * reference) & cut


@lru_cache(maxsize=64)
def clock_share(chip: Chip) -> Count:
    """Clock of the matrix units, after seconds and under the power limit, over the one of milliseconds without it."""
    limited = 1.0 if chip.power_limit_w is None or chip.tdp_w is None else chip.power_limit_w / chip.tdp_w
    if chip.name not in STEADY_BOARDS:
        return limited**EXPONENT
    return np.minimum(_watts_per_teraflop(chip) / (STEADY * unlimited_share(chip)), 1.0) * limited**EXPONENT


@lru_cache(maxsize=64)
def throttles(chip: Chip) -> Count:
    """1 where the clock falls further in products of more than a millisecond, as on the chips measured; else 0."""
    return 0.0 if chip.name in STEADY_BOARDS else np.where(has_room(chip), 0.0, 1.0)


@lru_cache(maxsize=64)
def reachable_share(chip: Chip) -> Count:
    """Fraction of the bandwidth that a kernel on all units can draw."""
    corrected = chip.generation in ECC_GENERATIONS and not chip.name.startswith(WORKSTATION)
    share = ECC_SHARE if corrected else 1.0
    if chip.units is None or chip.clock_hz is None or not has_sm_like_units(chip):
        return share * read_share(chip) * DEFAULT_REACHABLE
    per_clock = chip.real.bandwidth_bytes_per_s / (chip.units * chip.clock_hz)
    return share * read_share(chip) / (1.0 + per_clock / REQUESTED_PER_CLOCK)


@lru_cache(maxsize=64)
def read_share(chip: Chip) -> Count:
    """Rate at which memory is read under the power limit over the rate without."""
    needed = READING_POWER.get(chip.generation)
    if needed is None or chip.power_limit_w is None or chip.tdp_w is None:
        return 1.0
    return np.minimum(chip.power_limit_w / chip.tdp_w / needed, 1.0)


#: Generations with an L2 of two partitions, each caching the reads of its own SMs (A100 and H100 white papers).
PARTITIONED = frozenset(("ampere", "hopper", "blackwell"))
#: Data over the L2's size up to which all of it is held, and from which nothing is, since data that are read in a cycle
#: evict one another before their turn: of one piece (L40S, RTX PRO 6000), and of two partitions.
WHOLE, HALVES = (1.0, 1.2), (0.5, 1.0)
#: Bytes that a unit reads per clock (5 to 6 TB/s of an L40S), and rate over device memory below which no L2 is.
UNIT_BYTES_PER_CLOCK, MIN_SPEEDUP = 16.0, 1.5


def held_share(data: Count, chip: Chip) -> Count:
    """Share of `data` bytes, read once per cycle, that the L2 holds from one cycle to the next."""
    if chip.l2_bytes is None:
        return 0.0 * data
    full, none = HALVES if chip.generation in PARTITIONED else WHOLE
    share: Count = np.clip((none - data / chip.l2_bytes) / (none - full), 0.0, 1.0)
    return share


def rate(chip: Chip) -> Count:
    """Byte/s that the units read from the L2."""
    units, clock = units_and_clock(chip)
    fastest: Count = np.maximum(units * clock * UNIT_BYTES_PER_CLOCK, MIN_SPEEDUP * chip.bandwidth_bytes_per_s)
    return fastest
