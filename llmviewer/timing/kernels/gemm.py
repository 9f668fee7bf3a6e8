"""Matrix products with weights: tiles on units, concurrent memory traffic, and conversion of the input by engines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from llmviewer.core.counts import Array, Count, present
from llmviewer.core.ir import Operator, Place, Role
from llmviewer.hardware.chip import Chip
from llmviewer.ops.gemm import GemmShape
from llmviewer.timing.kernels import tiles
from llmviewer.timing.kernels.family import Constant, Constants, Family, constant
from llmviewer.timing.kernels.power import (
    clock_hz,
    clock_share,
    has_room,
    reachable_share,
    throttles,
    uncut,
    units_of,
    unlimited_share,
    usual_share,
)
from llmviewer.timing.roofline import Rates, ideal

#: Compute classes whose inputs need no conversion.
UNCONVERTED = frozenset(("fp16", "bf16", "tf32", "fp32", "fp64"))
#: Compute time after which the power limit has lowered the clock [s].
THROTTLING_S = 1e-3
#: Least compute time, so that a product without rows has a rate [s].
NO_TIME = 1e-30
#: Bytes of an operand of a class: only the 4-bit class packs two elements into one.
OPERAND_BYTES = {**dict.fromkeys(UNCONVERTED, 2.0), "fp4": 0.5}
#: Bytes of a partial sum of a depth that is split.
SUM_BYTES = 4.0
#: Rows from which block-scaled products use another kernel, and the block (n, k) that must divide their matrix (vLLM:
#: FlashInfer below, DeepGEMM above, CUTLASS if the block does not divide it).
BLOCK_SCALED_ROWS = 32.0
BLOCK_SHAPE = (64.0, 128.0)
#: Block-scaled products of vLLM on Blackwell pad their rows to a multiple of this, with further launches.
ROWS_ALIGNED = 4.0
#: Runs in a row between two time stamps (aiconfigurator, collector/vllm/collect_gemm.py: num_runs).
TIMED_RUNS = 6.0
#: Rows of the smallest tile, and rows per pass of a matrix-vector kernel, which reads the matrix again for more rows.
#: Libraries run it where padding a tile takes longer than reading memory (Apple's GPUs: 30 FLOP per byte; MLX and
#: llama.cpp for up to 8 rows).
TILE_ROWS, ROWS_PER_VECTOR_PASS = 32.0, 8.0
#: Rows that the matrix instruction of Hopper multiplies at least (wgmma m64nNk16 of PTX).
WIDE_TILE_ROWS = 64.0
#: Rows up to which kernels for cut tensor cores take half the smallest tile, the 16 rows of one instruction
#: (mma.m16n8k16 of PTX; thread_m_blocks = 1 of Marlin), so that padding costs no more time than on uncut ones.
HALF_TILE_ROWS = 16.0
#: Format of weights -> rows from which a kernel of its own unpacks them to 16 bit, for a 16-bit product.  gptq: above
#: MAX_Q_GEMM_ROWS of exllama's kernel, which multiplies on the vector units (csrc/quantization/gptq/q_gemm.cu of vLLM
#: 0.7).  awq: FP16_MATMUL_HEURISTIC_CONDITION (awq.py of vLLM 0.7).
UNPACKED = {"int4-gptq": 51.0, "int4-awq": 256.0}
ON_VECTOR_UNITS = "int4-gptq"
EQUIVALENTS = {"bf16": ("fp16",), "fp16": ("bf16",)}
#: End of the variant of products with 2:4-sparse weights.  Where they were not measured, dense ones of as many bits are
#: their equals, whose rate the sparsity multiplies.
SPARSE = "-2of4"
SPARSE_OF = {f"{name}{SPARSE}": (name, *EQUIVALENTS.get(name, ())) for name in ("bf16", "fp16", "fp8", "int8")}
#: Bits of weight-only kernels that were measured; other widths are converted by such kernels as well, hence no faster
#: than by their bytes: the nearest wider one first.
MEASURED_BITS = (4, 8)
SUBSTITUTES = {
    f"w{bits}a16": (
        *(f"w{width}a16" for width in sorted(MEASURED_BITS, key=lambda w: (w < bits, w)) if width != bits),
        "bf16",
    )
    for bits in range(1, 9)
}


def rates(operator: Operator, chip: Chip, constants: Constants) -> Rates:
    """Tiles on units (split in depth if units idle), concurrent memory traffic, and a fixed time.

    Never faster than the data sheet: fractions of peak and bandwidth are at most 1, and all else adds time.
    """
    sheet = ideal(operator, chip)
    shape = operator.shape
    assert isinstance(shape, GemmShape)
    traffic, bandwidth = operator.traffic_bytes, sheet.memory_bytes_per_s * _drawn_share(chip, constants["memory"])
    memory_s = traffic / bandwidth
    warm = operator.moved_bytes(Place.L2)
    if present(warm):
        memory_s = memory_s + _from_l2(warm, chip, constants["l2"])
        bandwidth = traffic / memory_s
    flops = np.maximum(operator.matmul_flops, 1.0)
    padded = padding_dominates(chip, operator.compute, operator.weight_dtype.bits)
    share = constants.get(PADDED.name, 0.0)
    compute_s, split_s = _tile_seconds(operator, shape, chip, constants, memory_s, padded * share)
    if padded is not False and share == 0.0:
        compute_s = np.where(padded, np.minimum(compute_s, vector_seconds(flops, shape, sheet, memory_s)), compute_s)
    compute_s = _slowed(compute_s, flops / sheet.matrix_flops_per_s, chip, constants["droop"])
    unpacking_s: Count = 0.0
    if operator.weight_dtype.name in UNPACKED:
        compute_s, unpacking_s = _unpacked(operator, shape, sheet, compute_s, memory_s)
    per_row = 2.0 * shape.n * constants["exposed"] / sheet.memory_bytes_per_s
    floor = constants["floor"]
    if shape.converts or shape.stamped:
        floor = floor + constants["convert_floor"]
    if shape.converts:
        per_row = per_row + _conversion_per_row(operator, shape, chip, constants)
    fixed = floor * (1e3 / clock_hz(chip)) + split_s + unpacking_s
    fixed = fixed + shape.m * per_row
    if shape.converts and _has_block_scales(operator):
        launch = _host_launch(shape, constants)
        fixed = np.maximum(fixed + launch / TIMED_RUNS, launch - np.maximum(compute_s, memory_s))
    return Rates(
        matrix_flops_per_s=flops / np.maximum(compute_s, NO_TIME),
        vector_flops_per_s=sheet.vector_flops_per_s if _weight_only(operator) else None,
        special_ops_per_s=None,
        memory_bytes_per_s=bandwidth,
        l2_bytes_per_s=None,
        link_bytes_per_s=sheet.link_bytes_per_s,
        network_bytes_per_s=sheet.network_bytes_per_s,
        host=sheet.host,
        sharpness=constants["sharpness"],
        fixed_s=fixed,
    )


def _slowed(compute_s: Count, peak_s: Count, chip: Chip, droop: float) -> Count:
    """Seconds at the clock that power leaves.  peak_s: at the dense peak, without padding, into which little goes."""
    clock = clock_share(chip)
    if np.any(clock < 1.0):
        compute_s = compute_s + peak_s / unlimited_share(chip) * (1.0 / clock - 1.0)
    return compute_s * (1.0 + throttles(chip) * droop * peak_s / (peak_s + THROTTLING_S)) if droop > 0.0 else compute_s


def _unpacked(
    operator: Operator, shape: GemmShape, sheet: Rates, compute_s: Count, memory_s: Count
) -> tuple[Count, Count]:
    """Seconds of the product, and of the kernel that unpacks its weights before it, of formats of UNPACKED."""
    rows = shape.m / shape.matrices
    few = rows < UNPACKED[operator.weight_dtype.name]
    if operator.weight_dtype.name == ON_VECTOR_UNITS and sheet.vector_flops_per_s is not None:
        compute_s = np.where(few, np.maximum(compute_s, operator.matmul_flops / sheet.vector_flops_per_s), compute_s)
    return compute_s, np.where(few, 0.0, 2.0 * memory_s * (16.0 / operator.weight_dtype.bits))


def _drawn_share(chip: Chip, share: float) -> Count:
    drawn = reachable_share(chip) * share
    return min(drawn, 1.0) if isinstance(drawn, float) else np.minimum(drawn, 1.0)


def _tile_seconds(
    operator: Operator, shape: GemmShape, chip: Chip, constants: Constants, memory_s: Count, padding: Count
) -> tuple[Count, Count]:
    """Seconds of tiles on the units, and of the reduction after a split in depth.

    padding: share of padding few rows to WIDE_TILE_ROWS that takes time.
    """
    grid = _grid(operator, shape, chip, constants)
    groups, rows = shape.matrices, shape.m
    if present(padding):
        rows = rows + padding * np.maximum(WIDE_TILE_ROWS * groups - rows, 0.0)
    count = tiles.tiles_per_unit(grid, rows, groups)
    sizes = tiles.unsplit(grid, count)
    if constants["by_rows"] == LARGE_TILES:
        return tiles.fastest_large(sizes), 0.0
    if constants["by_rows"]:
        return tiles.by_rows(sizes, shape.m / groups), 0.0
    kilocycle = 1e3 / clock_hz(chip)
    summed = constants.get(SUMMED.name, 0.0)
    moved_s = summed * (shape.m * shape.n * SUM_BYTES / chip.bandwidth_bytes_per_s) if present(summed) else 0.0
    whole = tiles.fastest(sizes)
    parts = tiles.fastest(tiles.split(grid, count, moved_s)) + constants["prologue"] * kilocycle
    adding = constants["split"] * kilocycle
    divided = np.hypot(parts, memory_s) + adding < np.hypot(whole, memory_s)
    seconds: Array = whole + divided * (parts - whole)  # three times faster than np.where
    reducing: Array = divided * np.float64(1.0) * adding
    return seconds, reducing


@lru_cache(maxsize=256)
def padding_dominates(chip: Chip, compute: str, bits: float) -> bool | Array:
    """Whether padding one row to a tile takes longer than reading its weights; an array for hypothetical chips.

    False if the chip's vector rate is unknown.
    """
    if chip.vector_rate() is None:
        return False
    weight_s = bits / 8.0 / chip.bandwidth_bytes_per_s
    tile_s = 2.0 * TILE_ROWS / (chip.matrix_rate(compute) * uncut(chip) * usual_share(chip))
    padded = np.asarray(tile_s > weight_s)
    return bool(padded) if padded.size == 1 else padded


def vector_seconds(flops: Count, shape: GemmShape, sheet: Rates, memory_s: Count) -> Count:
    """Seconds on the vector units, a few rows per pass; each further pass reads the matrix again."""
    rows = shape.m / shape.matrices
    passes = np.ceil(rows / ROWS_PER_VECTOR_PASS)
    peak, vector = sheet.matrix_flops_per_s, sheet.vector_flops_per_s
    rate = peak if vector is None else np.minimum(vector, peak)
    seconds: Array = np.maximum(flops / rate, np.where(passes > 1.0, passes * memory_s, 0.0))
    return seconds


def _grid(operator: Operator, shape: GemmShape, chip: Chip, constants: Constants) -> tiles.TileGrid:
    units, peak, sustained, peak_16bit = _chip_figures(chip, operator.compute)
    share: Any = constants["compute"]
    if operator.compute in UNCONVERTED and not _weight_only(operator):  # no engine's own kernel: a library's
        share = np.where(has_room(chip), np.maximum(share, 1.0), share)
    rows = shape.m / shape.matrices
    if np.any(uncut(chip) > 1.0) and np.any(rows <= HALF_TILE_ROWS):
        sustained, peak = (rate * np.where(rows <= HALF_TILE_ROWS, uncut(chip), 1.0) for rate in (sustained, peak))
    speed: tuple[Any, ...] = (
        units,
        sustained * share if np.all(share <= 1.0) else np.minimum(sustained * share, peak),
        peak_16bit / constants["balance"],
        OPERAND_BYTES.get(operator.compute, 1.0),
        constants["prologue"] * 1e3 / clock_hz(chip),
        constants["ragged"],
    )
    try:
        return tiles.cached_grid(shape.n, shape.depth, speed)
    except TypeError:  # arrays cannot be cached: a table of many products, or chips in one sweep
        return tiles.grid(shape.n, shape.depth, tiles.TileSpeed(*speed))


@lru_cache(maxsize=64)
def _chip_figures(chip: Chip, compute: str) -> tuple[Any, Any, Any, Any]:
    """Units, dense peak of a class, its sustained part, and 16-bit peak of uncut units; cached: a chip is immutable."""
    peak = chip.matrix_rate(compute)
    return units_of(chip), peak, peak * unlimited_share(chip), chip.matrix_rate("bf16") * uncut(chip)


def _from_l2(moved: Count, chip: Chip, per_clock: float) -> Count:
    """Seconds for moving bytes that stay in the L2 between the repetitions of a measurement; not so in models."""
    if chip.units is None or chip.clock_hz is None:
        return moved / chip.bandwidth_bytes_per_s
    return moved / (chip.units * chip.clock_hz * per_clock)


def _conversion_per_row(operator: Operator, shape: GemmShape, chip: Chip, constants: Constants) -> Count:
    """Seconds per row for conversion of the input: 2 bytes read per element, and the narrow input written."""
    kept = [access for access in operator.reads if access.tensor.role is Role.ACTIVATION]
    narrow = kept[0].tensor.dtype.bytes
    moved = shape.k * (2.0 + narrow)
    cold = sum(a.elements for a in kept if a.tensor.place is Place.DEVICE) / (shape.m * shape.k)
    seconds = moved * cold / chip.bandwidth_bytes_per_s
    if len(kept) > 1:
        seconds = seconds + _from_l2(moved * (1.0 - cold), chip, constants["l2"])
    return seconds * constants["convert"] + constants["convert_row"] * 1e-9


def _host_launch(shape: GemmShape, constants: Constants) -> Count:
    """Seconds of the host launch of block-scaled products, whose kernel depends on their shape.

    It hides shorter work on the device; of a series of timed runs only the first one waits for its launch.
    """
    odd = (shape.n % BLOCK_SHAPE[0] != 0.0) | (shape.k % BLOCK_SHAPE[1] != 0.0)
    many = constants["launch_many"]
    rows = np.where(shape.m >= BLOCK_SCALED_ROWS, many, constants["launch_few"])
    padded = np.where(shape.m % ROWS_ALIGNED != 0.0, constants["launch_padded"], 1.0)
    return np.where(odd, constants["launch_odd"] * many, rows) * padded * 1e-6


def _has_block_scales(operator: Operator) -> bool:
    """Whether the weights have one scale per block of rows and columns, as in DeepSeek-V3."""
    return "x" in operator.weight_dtype.name.partition("-")[2]


def _weight_only(operator: Operator) -> bool:
    """Whether weights are stored in fewer bits than they are multiplied in, and converted within the kernel."""
    return operator.weight_dtype.compute != operator.compute


def quantities(operator: Operator, chip: Chip) -> Mapping[str, Count]:
    """Number of rows and columns, and depth, of the product."""
    shape = operator.shape
    assert isinstance(shape, GemmShape)
    return {"m": shape.m, "n": shape.n, "k": shape.k}


def variant(operator: Operator) -> str:
    """`bf16`, `fp8` ...; `fp8-block`: one scale per block; `w4a16`: weights are stored in fewer bits; `bf16-2of4`:
    weights are 2:4 sparse."""
    stored, shape = operator.weight_dtype, operator.shape
    if stored.compute != operator.compute:
        return f"w{stored.bits:.0f}a16"
    if _has_block_scales(operator):
        return f"{operator.compute}-block"
    sparse = f"{operator.compute}{SPARSE}"
    return sparse if isinstance(shape, GemmShape) and shape.skipped and sparse in SPARSE_OF else operator.compute


#: Value of by_rows for kernels without small tiles.
LARGE_TILES = 2.0
BY_ROWS = Constant(
    name="by_rows",
    unit="1",
    meaning="kernels never split the depth; 1: choose their tile by rows only, 2: have tiles of 128 x 128 or more",
    start=0.0,
    low=0.0,
    high=LARGE_TILES,
    choices=(0.0, 1.0, LARGE_TILES),
)
SUMMED = Constant(
    name="summed", unit="1", start=2.0, low=0.0, high=50.0, later=True,
    meaning="time of each partial sum of a split depth, over its bytes / bandwidth",
)  # fmt: skip
#: 0.6 of SGLang's 16-bit products on an H20, chosen by its steps of 8 to 64 users
#: (https://github.com/zksainx/pipeweave), which are off by 5.5 % instead of 12; of ten steps of one user, which did not
#: choose it, 20 % instead of 32 (https://github.com/QwenLM/Qwen2.5, speed_benchmark.md).  None of vLLM's since cuBLAS
#: has kernels that swap the operands (https://github.com/Tencent/AngelSlim, vLLM 0.11).  A grouped product of 32 rows
#: reads 1.9 TB/s without that, 3.1 with it (https://github.com/deepseek-ai/DeepGEMM/pull/192).
PADDED = Constant(
    name="padded", unit="1", start=0.0, low=0.0, high=1.0, derived=True, later=True,
    meaning="share of padding to 64 rows that costs time where reading memory does not hide it",
)  # fmt: skip
#: Rows of converting and of stamped products hold the sum of this and `floor`; 16-bit products say how to divide it.
CONVERT_FLOOR = Constant(
    name="convert_floor", unit="kcycle", start=0.0, low=0.0, high=500.0, derived=True,
    meaning="in measured rows alone: conversion of the input, shortest kernel, or time stamps",
)  # fmt: skip


FAMILY = Family(
    name="gemm",
    constants=(
        constant("floor", "kcycle", 6.0, 0.0, 500.0, "shortest product"),
        constant("compute", "1", 0.97, 0.01, 1.25, "share of what the chip sustains of its dense peak"),
        constant("memory", "1", 0.95, 0.05, 1.15, "share of the bandwidth that the units can draw"),
        constant("sharpness", "1", 2.5, 1.0, 20.0, "exponent of the maximum of compute and memory"),
        constant("balance", "FLOP/byte", 50.0, 5.0, 500.0, "16-bit peak over the rate at which tiles are fed"),
        constant("prologue", "kcycle", 0.7, 0.0, 20.0, "before the first tile of a unit, and before each further one"),
        constant("split", "kcycle", 5.0, 0.0, 400.0, "reduction of a depth that is split over several units"),
        SUMMED,
        PADDED,
        constant("ragged", "1", 0.5, 0.0, 1.0, "share of the padding of partial tiles and waves that costs time"),
        BY_ROWS,
        constant("exposed", "1", 0.15, 0.0, 2.0, "share of the time of writing the output that is not hidden"),
        constant("droop", "1", 0.1, 0.0, 1.5, "relative extra time of products much longer than a millisecond"),
        constant("l2", "byte/cycle", 22.0, 2.0, 100.0, "L2 bandwidth of a unit, for measurements that stay in it"),
        constant("convert", "1", 1.5, 0.0, 20.0, "conversion of the input, over its bytes / bandwidth"),
        constant("convert_row", "ns", 1.0, 0.0, 40.0, "conversion of the input, fixed time of a row"),
        CONVERT_FLOOR,
        constant("launch_few", "us", 50.0, 0.0, 500.0, "block scales: host launch, fewer than 32 rows"),
        constant("launch_many", "us", 80.0, 0.0, 500.0, "block scales: host launch, 32 rows or more"),
        constant("launch_odd", "1", 2.0, 1.0, 10.0, "block scales: factor on launch_many for odd shapes"),
        constant("launch_padded", "1", 1.0, 1.0, 5.0, "block scales: factor where rows are padded to a multiple of 4"),
    ),
    rates=rates,
    quantities=quantities,
    variant=variant,
    equivalents=EQUIVALENTS | SPARSE_OF,
    substitutes=SUBSTITUTES,
)
