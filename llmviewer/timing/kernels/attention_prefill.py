"""Attention over prompts: tiles of 128 queries against the keys they see, in waves over the units.

FlashAttention-2 and -3 (arXiv 2307.08691, 2407.08608).  Engines write keys and values to the paged cache in the same
call: a block of threads per token, so time goes by tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.ir import Operator
from llmviewer.core.workload import Group
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import ROW_BLOCKS, AttentionShape
from llmviewer.timing.kernels.attention import TWINS, GroupTime, alone, covers, variant
from llmviewer.timing.kernels.clock import units_of
from llmviewer.timing.kernels.family import Constant, Constants, Family

#: Rows of a tile where ROW_BLOCKS does not know the generation.
ROWS = 128.0
#: Keys of a tile: on average half of the last one is computed in vain.
KEY_BLOCK = 128.0
#: Share of the units below which tiles also divide the keys (num_splits_heuristic of FlashAttention,
#: https://github.com/Dao-AILab/flash-attention/blob/main/hopper/heuristics.h), and the waves that this leaves unfilled.
SPLIT_BELOW, SPLIT_WASTE = 0.8, 1.15
#: Elements of K of one token that one block of threads writes at a time.
WRITTEN_AT_ONCE = 512.0


def part(group: Group, operator: Operator, chip: Chip, constants: Constants) -> GroupTime:
    """Time of one group: the longer of the work over all units and the longest tile, smoothly; then bytes, launch."""
    shape = operator.shape
    assert isinstance(shape, AttentionShape)
    width = shape.v_dim
    per_token = constants["token"] * np.minimum(shape.kv_heads * width, WRITTEN_AT_ONCE)
    per_token = (per_token + constants["cache"] * shape.kv_heads * width) / WRITTEN_AT_ONCE
    uneven = constants["uneven"] * ((shape.qk_dim > 128.0) & (shape.qk_dim < 256.0))
    return GroupTime(
        fixed_s=(constants["floor"] + uneven) * 1e-6 + group.tokens * (per_token * 1e-9),
        tiles_s=_tiles(group, shape, operator, chip, constants),
        byte_s=1.0 / (chip.bandwidth_bytes_per_s * constants["memory"]),
        sharpness=1.0,
    )


def _tiles(group: Group, shape: AttentionShape, operator: Operator, chip: Chip, constants: Constants) -> Count:
    """Seconds of all tiles.  packed: the heads of a group share tiles, and few tiles divide the keys."""
    packed = constants["rows"] == 0.0
    sharing = shape.heads / shape.kv_heads if packed else 1.0
    rows = _rows(shape.qk_dim, chip.generation) if packed else constants["rows"]
    units, span = units_of(chip), rows / sharing  # tokens of a tile
    new = np.maximum(group.new_tokens, 1.0)
    each = np.ceil(new / span - 1e-9)
    tiles = group.batch_size * (shape.heads * shape.used / sharing) * each
    half = 0.5 * np.minimum(span, new)
    keys = shape.pairs_of(group) / new + (half + 0.5 * KEY_BLOCK)
    longest = group.held + (new + 0.5 * KEY_BLOCK)
    if shape.window < np.inf:
        full = np.clip(1.0 - np.maximum(shape.window - group.held, 0.0) / new, 0.0, 1.0)
        skipped = group.held + 0.5 * (new + 1.0) - shape.pairs_of(group) / new
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
    """Seconds of a unit for one query row and key: products, and the exponential beside them."""
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


def _rows(head_dim: Count, generation: str) -> Count:
    """Query rows of a tile (ROW_BLOCKS), the widest heads first."""
    rows: Any = ROWS
    for largest, count in ROW_BLOCKS.get(generation, {}).items():
        rows = rows + (count - rows) * (head_dim <= largest)
    return np.asarray(rows) if isinstance(head_dim, np.ndarray) else float(rows)


FAMILY = Family(
    name="attention_prefill",
    constants=(
        Constant(name="floor", unit="us", meaning="shortest kernel", start=9.0, low=0.0, high=200.0),
        Constant(name="compute", unit="1", meaning="share of the dense peak", start=0.7, low=0.02, high=1.0),
        Constant(name="special", unit="1", meaning="share of the special-function rate", start=0.5, low=0.02, high=1.0),
        Constant(name="wide", unit="1", meaning="of it with heads beyond 192 elements", start=0.95, low=0.1, high=1.4),
        Constant(name="widest", unit="1", meaning="of that with heads beyond 256", start=0.5, low=0.01, high=1.4),
        Constant(name="tile", unit="us", meaning="each tile before its keys", start=2.5, low=0.0, high=50.0),
        Constant(name="sharpness", unit="1", meaning="of longest tile and mean load", start=3.0, low=1.0, high=20.0),
        Constant(name="memory", unit="1", meaning="share of the bandwidth", start=0.7, low=0.05, high=1.0),
        Constant(name="token", unit="ns", meaning="write one token to the cache", start=1.5, low=0.0, high=100.0),
        Constant(name="cache", unit="ns", meaning="and each 512 elements of K", start=0.3, low=0.0, high=100.0),
        Constant(name="uneven", unit="us", meaning="heads of 192 elements", start=0.5, low=0.0, high=50.0),
        Constant(name="window", unit="token", meaning="keys beyond a window", start=100.0, low=0.0, high=8192.0),
        Constant(name="skipped", unit="1", meaning="share of a key that no query sees", start=0.02, low=0.0, high=1.0),
        Constant(name="split", unit="us", meaning="to reduce divided keys", start=7.0, low=0.0, high=50.0),
        Constant(
            name="rows", unit="row", meaning="a head's tile; 0: FlashAttention's, which the heads of a group share",
            start=0.0, low=0.0, high=256.0, choices=(0.0, 128.0, 32.0),
        ),
    ),
    rates=alone(part),
    covers=covers,
    variant=variant,
    twins=TWINS,
)  # fmt: skip
