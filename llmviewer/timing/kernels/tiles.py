"""Output tiles of a matrix product: how many there are, how long a unit works on one, which tiles a kernel takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from llmviewer.core.counts import Array, Count

#: Rows x columns of the output tiles that libraries choose from (cuBLAS and CUTLASS: 32 to 256).  The last one is only
#: taken by kernels that choose by rows alone.
TILES = ((32, 64), (64, 64), (128, 128), (256, 128), (64, 128))
TILE_ROWS = np.array([rows for rows, _ in TILES], dtype=np.float64)[:, None]
TILE_COLUMNS = np.array([columns for _, columns in TILES], dtype=np.float64)[:, None]
PER_ROW = 1.0 / TILE_ROWS
CHOSEN = 4
#: Tiles of kernels that choose by rows alone: up to 64 rows, up to 128, more (CUTLASS configurations of vLLM, SGLang).
BY_ROWS = (1, 4, 2)
#: Depth that a tile is computed in at a time, and the shortest part that the depth is split into.
STEP = 64.0
SHORTEST_SPLIT = 256.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pace:
    """How fast a chip's units work on tiles.

    flops_per_s: of all units.  feed_bytes_per_s: at which they are given what they multiply, in operands of
    operand_bytes.  prologue_s: before a tile begins.  ragged: how much is paid for tiles and waves that are not full.
    """

    units: Count
    flops_per_s: Count
    feed_bytes_per_s: Count
    operand_bytes: float
    prologue_s: float
    ragged: float


@dataclass(frozen=True, slots=True, eq=False)
class TileGrid:
    """What does not depend on the rows, per tile size (first axis).

    whole, exact: tiles of a row of them, rounded up and not, per unit, as far as paid for.  depth_s: time of a unit for
    the whole depth of one tile; tile_s: with the prologue.  least: the smallest part of it that splitting leaves to a
    unit.  one: a single tile, as far as paid for.  waiting: how much waves wait for their last tile.
    """

    whole: Array
    exact: Array
    depth_s: Array
    tile_s: Array
    least: Count
    one: Count
    waiting: float


def grid(n: Count, k: Count, pace: Pace) -> TileGrid:
    """The grid of a product with n columns and depth k."""
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
    """The same of plain numbers: a model asks for few of them over and over.  pace: the fields of Pace, in order."""
    return grid(n, k, Pace(**dict(zip(Pace.__slots__, pace, strict=True))))


def per_unit(grid: TileGrid, m: Count, groups: Count) -> Array:
    """Tiles that each unit computes, per tile size.  groups: experts, whose rows share no tile."""
    rows = m * PER_ROW  # each step with both axes costs three times one of a single axis: they are few
    if isinstance(groups, float) and groups == 1.0:
        return np.ceil(rows) * grid.whole + np.maximum(rows * grid.exact, grid.one)
    return np.ceil(rows / groups) * groups * grid.whole + np.maximum(rows * grid.exact, groups * grid.one)


def unsplit(grid: TileGrid, tiles: Array) -> Array:
    """Seconds per tile size where every tile is computed by one unit, in waves that wait for their last tile."""
    waves = np.maximum(tiles, 1.0)
    if grid.waiting > 0.01:
        waves += grid.waiting * (np.ceil(tiles) - waves)
    return waves * grid.tile_s


def best(seconds: Array) -> Array:
    """The time of the best tile a library may choose."""
    least: Array = np.minimum.reduce(seconds[:CHOSEN])
    return least


def split(grid: TileGrid, tiles: Array) -> Array:
    """Seconds per tile size, less the prologue, where idle units take a part of the depth."""
    return np.maximum(tiles, grid.least) * grid.depth_s


def by_rows(seconds: Array, m: Count) -> Array:
    """The time of the tile that a kernel takes by its rows alone."""
    few, some, many = (seconds[at] for at in BY_ROWS)
    taken: Array = np.where(m <= 64.0, few, np.where(m <= 128.0, some, many))
    return taken
