"""Output tiles of a matrix product: their number, the time of a unit for one, and the tile size that kernels choose."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from llmviewer.core.counts import Array, Count, present
from llmviewer.core.frozen import frozen

#: Rows x columns of the output tiles that libraries choose from (cuBLAS and CUTLASS: 32 to 256).  The last one is only
#: used by kernels that choose by rows only.
TILES = ((32, 64), (64, 64), (128, 128), (256, 128), (64, 128))
TILE_ROWS = np.array([rows for rows, _ in TILES], dtype=np.float64)[:, None]
TILE_COLUMNS = np.array([columns for _, columns in TILES], dtype=np.float64)[:, None]
PER_ROW = 1.0 / TILE_ROWS
SEARCHED_TILES = 4
#: Largest number of rows, and the tile for them, of kernels that choose by rows only; beyond, the faster of LARGE
#: (CUTLASS configurations of vLLM and SGLang).
BY_ROWS = ((16.0, 0), (64.0, 1), (128.0, 4))
#: The tiles of 4-bit and block-scaled kernels (CUTLASS and DeepGEMM on Blackwell: 128 x 128 and pairs of them).
LARGE = (2, 3)
#: Depth (k) of one step of a tile, and smallest part that the depth is split into.
STEP = 64.0
MIN_SPLIT = 256.0


@frozen(kw_only=False, eq=False)
class TileSpeed:
    """Speed at which a chip's units work on tiles.

    flops_per_s: sum over units.  feed_bytes_per_s: rate at which operands of operand_bytes each reach the units.
    prologue_s: time before a tile starts.  ragged: fraction of the padding of partial tiles and waves that costs time.
    """

    units: Count
    flops_per_s: Count
    feed_bytes_per_s: Count
    operand_bytes: float
    prologue_s: float
    ragged: float


@frozen(kw_only=False, eq=False)
class TileGrid:
    """Figures of a product that do not depend on its rows, per tile size (first axis).

    whole, exact: tiles in one row of tiles per unit, rounded up and not, weighted by ragged and 1 - ragged.
    depth_s: time of a unit for the full depth of one tile; tile_s: including the prologue.  min_split: smallest
    fraction of the depth that a split leaves to a unit.  one: a single tile per unit, weighted by 1 - ragged.
    waiting: fraction of the idle time in the last wave that counts.
    """

    whole: Array
    exact: Array
    depth_s: Array
    tile_s: Array
    min_split: Count
    one: Count
    waiting: float


def grid(n: Count, k: Count, speed: TileSpeed) -> TileGrid:
    """The tile grid of a product with n columns and depth k."""
    computing = 2.0 * TILE_ROWS * TILE_COLUMNS / speed.flops_per_s
    feeding = (TILE_ROWS + TILE_COLUMNS) * speed.operand_bytes / speed.feed_bytes_per_s
    depth = np.ceil(k / STEP) * STEP
    depth_s = np.maximum(computing, feeding) * speed.units * depth
    exact_weight = 1.0 - speed.ragged
    return TileGrid(
        np.ceil(n / TILE_COLUMNS) / speed.units * speed.ragged,
        n / TILE_COLUMNS / speed.units * exact_weight,
        depth_s,
        depth_s + speed.prologue_s,
        np.minimum(MIN_SPLIT / depth, 1.0),
        exact_weight / speed.units,
        speed.ragged * speed.ragged,
    )


@lru_cache(maxsize=4096)
def cached_grid(n: float, k: float, speed: tuple[float, ...]) -> TileGrid:
    """`grid` of plain numbers, cached as a model repeats few sizes.  speed: the fields of TileSpeed, in order."""
    return grid(n, k, TileSpeed(*speed))


def tiles_per_unit(grid: TileGrid, m: Count, groups: Count) -> Array:
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


def fastest(seconds: Array) -> Array:
    """Time with the fastest tile that a library may choose."""
    best: Array = np.minimum.reduce(seconds[:SEARCHED_TILES])
    return best


def fastest_large(seconds: Array) -> Array:
    """Time with the faster of the two largest tiles."""
    best: Array = np.minimum(*(seconds[at] for at in LARGE))
    return best


def split(grid: TileGrid, tiles: Array, moved_s: Count = 0.0) -> Array:
    """Seconds per tile size without the prologue, if idle units take over a part of the depth (split-k).

    moved_s: time in which the partial sums of one part are moved.
    """
    if not present(moved_s):
        return np.maximum(tiles, grid.min_split) * grid.depth_s
    share = np.maximum(tiles, grid.min_split)
    seconds: Array = share * grid.depth_s + moved_s / np.minimum(share, 1.0)
    return seconds


def by_rows(seconds: Array, m: Count) -> Array:
    """Time with the tile that a kernel chooses by rows only."""
    chosen = fastest_large(seconds)
    for most, tile in reversed(BY_ROWS):
        chosen = np.where(m <= most, seconds[tile], chosen)
    return chosen
