"""Output tiles of a matrix product: their number, the time of a unit for one, and the tile size that kernels choose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from llmviewer.core.counts import Array, Count

#: Rows x columns of the output tiles that libraries choose from (cuBLAS and CUTLASS: 32 to 256).  The last one is only
#: used by kernels that choose by rows only.
TILES = ((32, 64), (64, 64), (128, 128), (256, 128), (64, 128))
TILE_ROWS = np.array([rows for rows, _ in TILES], dtype=np.float64)[:, None]
TILE_COLUMNS = np.array([columns for _, columns in TILES], dtype=np.float64)[:, None]
PER_ROW = 1.0 / TILE_ROWS
CHOSEN = 4
#: Tiles of kernels that choose by rows only: up to 64 rows, up to 128, more (CUTLASS configurations of vLLM, SGLang).
BY_ROWS = (1, 4, 2)
#: Depth (k) of one step of a tile, and smallest part that the depth is split into.
STEP = 64.0
SHORTEST_SPLIT = 256.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pace:
    """Speed at which a chip's units work on tiles.

    flops_per_s: sum over units.  feed_bytes_per_s: rate at which operands of operand_bytes each reach the units.
    prologue_s: time before a tile starts.  ragged: how much of partial tiles and waves is paid for, 0 to 1.
    """

    units: Count
    flops_per_s: Count
    feed_bytes_per_s: Count
    operand_bytes: float
    prologue_s: float
    ragged: float


@dataclass(frozen=True, slots=True, eq=False)
class TileGrid:
    """Figures of a product that do not depend on its rows, per tile size (first axis).

    whole, exact: tiles in a row of tiles per unit, rounded up and not, each weighted by how much of it is paid for.
    depth_s: time of a unit for the full depth of one tile; tile_s: including the prologue.  least: smallest fraction of
    the depth that a split leaves to a unit.  one: a single tile per unit, weighted likewise.  waiting: how much waves
    wait for their last tile, 0 to 1.
    """

    whole: Array
    exact: Array
    depth_s: Array
    tile_s: Array
    least: Count
    one: Count
    waiting: float


def grid(n: Count, k: Count, pace: Pace) -> TileGrid:
    """The tile grid of a product with n columns and depth k."""
    computing = 2.0 * TILE_ROWS * TILE_COLUMNS / pace.flops_per_s
    feeding = (TILE_ROWS + TILE_COLUMNS) * pace.operand_bytes / pace.feed_bytes_per_s
    depth = np.ceil(k / STEP) * STEP
    depth_s = np.maximum(computing, feeding) * pace.units * depth
    loose = 1.0 - pace.ragged
    return TileGrid(
        np.ceil(n / TILE_COLUMNS) / pace.units * pace.ragged,
        n / TILE_COLUMNS / pace.units * loose,
        depth_s,
        depth_s + pace.prologue_s,
        np.minimum(SHORTEST_SPLIT / depth, 1.0),
        loose / pace.units,
        pace.ragged * pace.ragged,
    )


@lru_cache(maxsize=4096)
def looked_up(n: float, k: float, pace: tuple[float, ...]) -> TileGrid:
    """`grid` of plain numbers, cached as a model repeats few sizes.  pace: the fields of Pace, in order."""
    return grid(n, k, Pace(**dict(zip(Pace.__slots__, pace, strict=True))))


def per_unit(grid: TileGrid, m: Count, groups: Count) -> Array:
    """Tiles that each unit computes, per tile size.  groups: experts, whose rows share no tile."""
    rows = m * PER_ROW  # operations on both axes cost three times as much as on one: use few of them
    if isinstance(groups, float) and groups == 1.0:
        return np.ceil(rows) * grid.whole + np.maximum(rows * grid.exact, grid.one)
    return np.ceil(rows / groups) * groups * grid.whole + np.maximum(rows * grid.exact, groups * grid.one)


def unsplit(grid: TileGrid, tiles: Array) -> Array:
    """Seconds per tile size if one unit computes every tile, in waves that wait for their last tile."""
    waves = np.maximum(tiles, 1.0)
    if grid.waiting > 0.01:
        waves += grid.waiting * (np.ceil(tiles) - waves)
    return waves * grid.tile_s


def best(seconds: Array) -> Array:
    """Time with the fastest tile that a library may choose."""
    least: Array = np.minimum.reduce(seconds[:CHOSEN])
    return least


def split(grid: TileGrid, tiles: Array) -> Array:
    """Seconds per tile size without the prologue, if idle units take over a part of the depth (split-k)."""
    return np.maximum(tiles, grid.least) * grid.depth_s


def by_rows(seconds: Array, m: Count) -> Array:
    """Time with the tile that a kernel chooses by rows only."""
    small, medium, large = (seconds[at] for at in BY_ROWS)
    chosen: Array = np.where(m <= 64.0, small, np.where(m <= 128.0, medium, large))
    return chosen
