"""Routed experts: grouped products on tiles of few rows, with the kernels that sort rows by expert and add them up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Array, Count, present
from llmviewer.core.ir import Operator, Place
from llmviewer.hardware.chip import Chip
from llmviewer.ops.gemm import GemmShape
from llmviewer.timing.kernels import gemm, power
from llmviewer.timing.kernels.family import Constant, Constants, Family, constant
from llmviewer.timing.kernels.power import reachable_share, sustained_share, units_of
from llmviewer.timing.roofline import Rates, ideal

#: Rows x columns of the tiles that kernels choose from.  Sixteen rows are the least that matrix units multiply, and
#: what Triton's, CUTLASS', DeepGEMM's and TensorRT-LLM's kernels use for few rows per expert.
TILES = ((16.0, 64.0), (64.0, 64.0), (128.0, 128.0), (256.0, 128.0))
TILE_ROWS, TILE_COLUMNS = (np.array(sizes)[:, None] for sizes in zip(*TILES, strict=True))
#: Bytes per element of the 16-bit rows that are moved around the products.
ROW_BYTES = 2.0
#: Variant of elementwise work on rows of experts.
ROWS = "rows"


def rates(operator: Operator, chip: Chip, constants: Constants) -> Rates:
    """Tiles of each expert on the units, concurrent memory traffic, and a fixed time.

    Elementwise work on the rows (activation, weighted sum, conversion) is its traffic at full bandwidth: what it takes
    beyond that, and its launches, were measured together with the products and are in their constants `floor`, `rows`
    and `sort`.
    """
    sheet = ideal(operator, chip)
    shape, share = operator.shape, constants["memory"]
    if not isinstance(shape, GemmShape):
        return replace(_with_l2(operator, chip, sheet, 1.0), l2_bytes_per_s=None, sharpness=None)
    drawn = np.minimum(reachable_share(chip) * share, 1.0)
    loaded = _with_l2(operator, chip, sheet, drawn)
    flops = np.maximum(operator.matmul_flops, 1.0)
    seconds = _tile_seconds(operator, shape, chip, constants)
    padded = gemm.padding_dominates(chip, operator.compute, operator.weight_dtype.bits)
    if padded is not False:
        memory_s = operator.traffic_bytes / loaded.memory_bytes_per_s
        seconds = np.where(padded, np.minimum(seconds, gemm.vector_seconds(flops, shape, sheet, memory_s)), seconds)
    return replace(
        loaded,
        matrix_flops_per_s=flops / np.maximum(seconds, flops / sheet.matrix_flops_per_s),
        vector_flops_per_s=sheet.vector_flops_per_s if operator.weight_dtype.compute != operator.compute else None,
        special_ops_per_s=None,
        l2_bytes_per_s=None,
        sharpness=constants["sharpness"],
        fixed_s=_fixed_seconds(shape, chip, constants),
    )


def tiles(shape: GemmShape) -> Array:
    """Row tiles per tile size (first axis): at least one for each active expert, and half of the last one is padding.

    Exact counts for the loads that routers produce fit measured times no better.
    """
    active = np.maximum(shape.active, 1.0)
    count: Array = np.maximum(active, shape.m / TILE_ROWS + 0.5 * active)
    return count


def _tile_seconds(operator: Operator, shape: GemmShape, chip: Chip, constants: Constants) -> Array:
    """Seconds of the tiles on the units with the fastest tile size for the rows that the kernel expects.

    With the setting `whole` it expects the rows of all devices on its own experts, as it learns only while it runs
    which tokens chose them; a device of many then multiplies large tiles that hold few rows.
    """
    seconds = _seconds_by_tile(operator, shape, chip, constants)
    if shape.routed is None or not constants["whole"]:
        best: Array = np.minimum.reduce(seconds)
    else:
        expected = replace(shape, m=np.maximum(shape.routed, shape.m))
        chosen = np.argmin(_seconds_by_tile(operator, expected, chip, constants), axis=0)
        best = np.take_along_axis(seconds, chosen[None], axis=0)[0]
    return best / shape.parts


def _seconds_by_tile(operator: Operator, shape: GemmShape, chip: Chip, constants: Constants) -> Array:
    """Seconds of the tiles on the units per tile size (first axis)."""
    units, columns = units_of(chip), shape.n * shape.parts
    peak = chip.matrix_rate(operator.compute) * (sustained_share(chip) * constants["compute"])
    area = TILE_ROWS * TILE_COLUMNS + constants["feed"] * (TILE_ROWS + TILE_COLUMNS)
    one = area * (2.0 * units / peak) * shape.depth + constants["tile"] * 1e-6
    waves = np.maximum(tiles(shape) * np.ceil(columns / TILE_COLUMNS) / units, 1.0)
    seconds: Array = (waves + constants["ragged"] * (np.ceil(waves) - waves)) * one
    return seconds


def _fixed_seconds(shape: GemmShape, chip: Chip, constants: Constants) -> Count:
    """Launches, start of each expert, sorting of all rows, and copies of rows; products run as one share them."""
    routed = shape.m if shape.routed is None else shape.routed
    moved = (shape.n + shape.k / shape.parts) * (ROW_BYTES / chip.bandwidth_bytes_per_s)
    whole = (shape.n * shape.parts + shape.k) * ROW_BYTES
    once = constants["floor"] * 1e-6 + shape.active * (constants["expert"] * 1e-9) + routed * (constants["sort"] * 1e-9)
    copied = constants["rows"] * shape.m * _beyond_l2(shape.m * whole, chip)
    if shape.routed is not None and constants["idle"] > 0.0:
        idle = np.maximum(routed - shape.m, 0.0)
        copied = copied + constants["idle"] * idle * _beyond_l2(idle * whole, chip)
    return once / shape.parts + copied * moved


def _beyond_l2(size_bytes: Count, chip: Chip) -> Count:
    """Time of traffic over that of device memory: less where data of this size stays in the L2."""
    if chip.l2_bytes is None:
        return 1.0
    held: Count = 1.0 - power.held_share(size_bytes, chip) * (1.0 - chip.bandwidth_bytes_per_s / power.rate(chip))
    return held


def _with_l2(operator: Operator, chip: Chip, sheet: Rates, share: Count) -> Rates:
    """The rates with this share of the bandwidth, reduced by data in the L2, which measured tables place there."""
    bandwidth: Count = sheet.memory_bytes_per_s * share
    warm = operator.moved_bytes(Place.L2)
    if present(warm):
        traffic = operator.traffic_bytes
        bandwidth = traffic / (traffic / bandwidth + warm / power.rate(chip))
    return replace(sheet, memory_bytes_per_s=bandwidth)


def quantities(operator: Operator, chip: Chip) -> Mapping[str, Count]:
    """Rows per active expert, columns, and depth of a grouped product; nothing for elementwise work."""
    shape = operator.shape
    if not isinstance(shape, GemmShape):
        return {}
    return {"rows": shape.m / np.maximum(shape.active, 1.0), "n": shape.n * shape.parts, "k": shape.k}


def variant(operator: Operator) -> str:
    """`bf16`, `fp8`, `fp8-block`, `fp4` ...; `w4a16`, `w4a16-mxfp4`, `w4a8-mxfp4`: weights of fewer bits; `rows`."""
    if not isinstance(operator.shape, GemmShape):
        return ROWS
    stored = operator.weight_dtype
    if stored.compute == operator.compute:
        return gemm.variant(operator)
    inputs = 8 if operator.compute in ("fp8", "int8") else 16
    return f"w{stored.bits:.0f}a{inputs}" + (f"-{stored.name}" if stored.compute == "fp4" else "")


#: Variants with fits of their own -> variants to use if none was measured on any chip, nearest first.
SUBSTITUTES: dict[str, tuple[str, ...]] = {
    "bf16": ("fp8",),
    "fp16": ("fp8",),
    "fp8": ("fp8-block", "bf16"),
    "fp8-block": ("fp8", "bf16"),
    "int8": ("fp8", "bf16"),
    "fp4": ("w4a8-mxfp4", "fp8"),
    "w4a8-mxfp4": ("fp4", "fp8"),
    "w4a16": ("w4a16-mxfp4", "w8a16", "bf16"),
    "w8a16": ("w4a16", "bf16"),
    "w4a16-mxfp4": ("w4a16", "w4a16-nvfp4", "bf16"),
    "w4a16-nvfp4": ("w4a16-mxfp4", "w4a16", "bf16"),
}
#: Variants of the same speed.
EQUIVALENTS: dict[str, tuple[str, ...]] = {
    "bf16": ("fp16",),
    "fp16": ("bf16",),
    ROWS: (*SUBSTITUTES, "streaming/act"),
}


FAMILY = Family(
    name="experts",
    constants=(
        constant("floor", "us", 12.0, 0.0, 250.0, "shortest product, with its share of the other kernels' launches"),
        constant("compute", "1", 0.8, 0.01, 1.6, "share of what the chip sustains of its dense peak"),
        constant("memory", "1", 0.9, 0.03, 1.15, "share of the bandwidth that the units can draw"),
        constant("sharpness", "1", 2.0, 1.0, 20.0, "exponent of the maximum of compute and memory"),
        constant("feed", "1", 20.0, 0.0, 1000.0, "rows and columns whose loading takes as long as their product"),
        constant("tile", "us", 0.5, 0.0, 30.0, "start of a tile on its unit"),
        constant("ragged", "1", 0.5, 0.0, 1.0, "share of the idle time in the last wave of tiles that counts"),
        constant("expert", "ns", 20.0, 0.0, 3000.0, "each active expert"),
        constant("sort", "ns", 0.3, 0.0, 20.0, "sorting: each row of the layer, on this device or another"),
        constant("rows", "1", 0.5, 0.0, 10.0, "copies of rows, over the time of moving input and output once"),
        constant("idle", "1", 0.2, 0.0, 10.0, "the same for rows of experts on other devices, which are masked"),
        Constant(
            name="whole", unit="1", start=0.0, low=0.0, high=1.0, choices=(0.0, 1.0),
            meaning="1: tiles are chosen for the rows of all devices, 0: for those of this one",
        ),
    ),
    rates=rates,
    quantities=quantities,
    variant=variant,
    equivalents=EQUIVALENTS,
    substitutes=SUBSTITUTES,
    last_resorts={name: (f"gemm/{name}-experts", f"gemm/{name.partition('-mx')[0].partition('-nv')[0]}", "gemm/bf16")
                  for name in SUBSTITUTES},
)  # fmt: skip
