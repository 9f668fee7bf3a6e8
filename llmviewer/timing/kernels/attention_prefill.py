"""Prefill attention: tiles of 128 queries against the keys that they attend to, in waves over the units.

FlashAttention-2 and -3 (arXiv 2307.08691, 2407.08608).  Engines write keys and values to the paged cache in the same
call with one thread block per token, so the time of writing scales with tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.ir import Operator
from llmviewer.core.workload import Group
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import ROW_BLOCKS, AttentionShape
from llmviewer.timing.kernels.attention import EQUIVALENTS, GroupTime, quantities, single_kernel, variant
from llmviewer.timing.kernels.clock import units_of
from llmviewer.timing.kernels.family import Constant, Constants, Family

#: Query rows of a tile on generations that ROW_BLOCKS does not list.
DEFAULT_TILE_ROWS = 128.0
#: Keys of a tile; on average half of the last tile is padding.
KEY_BLOCK = 128.0
#: Keys are split too if tiles fill less than this fraction of the units (num_splits_heuristic of FlashAttention,
#: https://github.com/Dao-AILab/flash-attention/blob/main/hopper/heuristics.h); and the cost of its partial waves.
SPLIT_BELOW, SPLIT_WASTE = 0.8, 1.15
#: Elements of one token's K that a thread block writes at a time.
ELEMENTS_PER_WRITE = 512.0


def group_time(group: Group, operator: Operator, chip: Chip, constants: Constants) -> GroupTime:
    """Time of one group: the smooth maximum of mean load per unit and longest tile, plus bytes and launch."""
    shape = operator.shape
    assert isinstance(shape, AttentionShape)
    width = shape.v_dim
    per_token = constants["token"] * np.minimum(shape.kv_heads * width, ELEMENTS_PER_WRITE)
    per_token = (per_token + constants["cache"] * shape.kv_heads * width) / ELEMENTS_PER_WRITE
    uneven = constants["uneven"] * ((shape.qk_dim > 128.0) & (shape.qk_dim < 256.0))
    return GroupTime(
        fixed_s=(constants["floor"] + uneven) * 1e-6 + group.tokens * (per_token * 1e-9),
        tiles_s=_tiles(group, shape, operator, chip, constants),
        byte_s=1.0 / (chip.bandwidth_bytes_per_s * constants["memory"]),
        sharpness=1.0,
    )


def _tiles(group: Group, shape: AttentionShape, operator: Operator, chip: Chip, constants: Constants) -> Count:
    """Seconds of all tiles.  packed: the query heads of a KV head share tiles, and keys are split if tiles are few."""
    packed = constants["rows"] == 0.0
    sharing = shape.heads / shape.kv_heads if packed else 1.0
    rows = _tile_rows(shape.qk_dim, chip.generation) if packed else constants["rows"]
    units, span = units_of(chip), rows / sharing  # tokens of a tile
    new = np.maximum(group.new_tokens, 1.0)
    each = np.ceil(new / span - 1e-9)
    tiles = group.batch_size * (shape.heads * shape.used / sharing) * each
    half = 0.5 * np.minimum(span, new)
    keys = shape.pairs_of(group) / new + (half + 0.5 * KEY_BLOCK)
    longest = group.remaining_tokens + (new + 0.5 * KEY_BLOCK)
    if shape.window < np.inf:
        full = np.clip(1.0 - np.maximum(shape.window - group.remaining_tokens, 0.0) / new, 0.0, 1.0)
        skipped = group.remaining_tokens + 0.5 * (new + 1.0) - shape.pairs_of(group) / new
        keys = keys + full * (half + constants["window"]) + constants["skipped"] * skipped
        longest = np.minimum(longest, shape.window + span + 0.5 * KEY_BLOCK + constants["window"])
    elif shape.chunk:
        longest = np.minimum(longest, shape.chunk + 0.5 * KEY_BLOCK)
    key_s, tile_s = _key_s(shape, operator, chip, constants) * rows, constants["tile"] * 1e-6
    total = tiles * (tile_s + keys * key_s) / units
    longest = tile_s + longest * key_s
    if packed:
        split = np.minimum(longest, tile_s + SPLIT_WASTE * total + constants["split"] * 1e-6)
        longest = np.where(tiles < SPLIT_BELOW * units, split, longest)
    p = constants["sharpness"]
    slowest: Count = (total**p + longest**p) ** (1.0 / p)
    return slowest


def _key_s(shape: AttentionShape, operator: Operator, chip: Chip, constants: Constants) -> Count:
    """Seconds of a unit per query row and key: products, overlapped with the exponential."""
    units = units_of(chip)
    share = constants["compute"] * (1.0 + (constants["wide"] - 1.0) * (shape.qk_dim > 192.0))
    share = share * (1.0 + (constants["widest"] - 1.0) * (shape.qk_dim > 256.0))
    rate = chip.matrix_rate(operator.compute) * np.minimum(share, 1.0)
    products = 2.0 * (shape.qk_dim + shape.v_dim) * units / rate
    if chip.special_ops_per_s is None:
        return products
    exponential = units * shape.score_special / (chip.special_ops_per_s * constants["special"])
    both: Count = (products**2 + exponential**2) ** 0.5
    return both


def _tile_rows(head_dim: Count, generation: str) -> Count:
    """Query rows of a tile (ROW_BLOCKS lists the widest heads first)."""
    rows: Any = DEFAULT_TILE_ROWS
    for largest, count in ROW_BLOCKS.get(generation, {}).items():
        rows = rows + (count - rows) * (head_dim <= largest)
    return rows if isinstance(head_dim, np.ndarray) else float(rows)


FAMILY = Family(
    name="attention_prefill",
    constants=(
        Constant(name="floor", unit="us", meaning="shortest kernel", start=9.0, low=0.0, high=200.0),
        Constant(name="compute", unit="1", meaning="share of the dense peak", start=0.7, low=0.02, high=1.0),
        Constant(name="special", unit="1", meaning="share of the special-function rate", start=0.5, low=0.02, high=1.0),
        Constant(name="wide", unit="1", meaning="factor on compute, heads above 192", start=0.95, low=0.1, high=1.4),
        Constant(name="widest", unit="1", meaning="further factor, heads above 256", start=0.5, low=0.01, high=1.4),
        Constant(name="tile", unit="us", meaning="fixed time of a tile", start=2.5, low=0.0, high=50.0),
        Constant(name="sharpness", unit="1", meaning="p of longest tile and mean load", start=3.0, low=1.0, high=20.0),
        Constant(name="memory", unit="1", meaning="share of the bandwidth", start=0.7, low=0.05, high=1.0),
        Constant(name="token", unit="ns", meaning="writing one token to the cache", start=1.5, low=0.0, high=100.0),
        Constant(name="cache", unit="ns", meaning="writing 512 elements of K", start=0.3, low=0.0, high=100.0),
        Constant(name="uneven", unit="us", meaning="extra time, heads of 192 elements", start=0.5, low=0.0, high=50.0),
        Constant(name="window", unit="token", meaning="keys read beyond a window", start=100.0, low=0.0, high=8192.0),
        Constant(name="skipped", unit="1", meaning="cost of a masked key over others", start=0.02, low=0.0, high=1.0),
        Constant(name="split", unit="us", meaning="reduction of split keys", start=7.0, low=0.0, high=50.0),
        Constant(
            name="rows", unit="row", meaning="tile of one head; 0: FlashAttention's tile, shared by a group's heads",
            start=0.0, low=0.0, high=256.0, choices=(0.0, 128.0, 32.0),
        ),
    ),
    rates=single_kernel(group_time),
    quantities=quantities,
    variant=variant,
    equivalents=EQUIVALENTS,
)  # fmt: skip
