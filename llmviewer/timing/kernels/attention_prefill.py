"""Prefill attention: tiles of 128 queries against the keys that they attend to, in waves over the units.

FlashAttention-2 and -3 (arXiv 2307.08691, 2407.08608).  Engines write keys and values to the paged cache in the same
call with one thread block per token, so the time of writing scales with tokens.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.ir import Operator
from llmviewer.core.workload import Group
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import ROW_BLOCKS, AttentionShape
from llmviewer.timing.kernels import power
from llmviewer.timing.kernels.attention import (
    EQUIVALENTS,
    SUBSTITUTES,
    GroupTime,
    limits,
    quantities,
    single_kernel,
    variant,
)
from llmviewer.timing.kernels.family import Constant, Constants, Family
from llmviewer.timing.kernels.power import h100_cycle, units_of

#: Query rows of a tile on generations that ROW_BLOCKS does not list.
DEFAULT_TILE_ROWS = 128.0
#: Keys of a tile; on average half of the last tile is padding.
KEY_BLOCK = 128.0
#: Query rows of FlashAttention-2's tiles over a paged cache, and elements of a tile's keys: 256 keys of heads of 64
#: elements (https://github.com/Dao-AILab/flash-attention, csrc/flash_attn/src/flash_fwd_launch_template.h).
PAGED_ROWS, PAGED_BLOCK = 64.0, 16384.0
#: Fewest query rows of FlashInfer's tiles, and their keys (FA2DetermineCtaTileQ in include/flashinfer/utils.cuh of
#: https://github.com/flashinfer-ai/flashinfer).
ADAPTIVE_ROWS, ADAPTIVE_BLOCK = 16.0, 32.0
#: Keys are split too if tiles fill less than this fraction of the units (num_splits_heuristic of FlashAttention,
#: https://github.com/Dao-AILab/flash-attention/blob/main/hopper/heuristics.h); and the cost of its partial waves.
SPLIT_BELOW, SPLIT_WASTE = 0.8, 1.15
#: Bytes that a prompt's attention leaves in the L2 over those of its operator: keys and values are copied to the cache.
CACHED_COPIES = 1.5
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
        byte_s=_byte_s(operator, chip, constants),
        sharpness=1.0,
    )


def _byte_s(operator: Operator, chip: Chip, constants: Constants) -> Count:
    """Seconds per byte: inputs and outputs that fit the L2 stay there between the kernels that write and read them."""
    device_s = 1.0 / (chip.bandwidth_bytes_per_s * constants["memory"])
    held = power.held_share(CACHED_COPIES * operator.traffic_bytes, chip)
    return device_s + held * np.minimum(1.0 / power.rate(chip) - device_s, 0.0)


def _tiles(group: Group, shape: AttentionShape, operator: Operator, chip: Chip, constants: Constants) -> Count:
    """Seconds of all tiles.  packed: the query heads of a KV head share tiles, and keys are split if tiles are few."""
    packed = constants["rows"] in (0.0, ADAPTIVE_ROWS)
    sharing = _sharing(group, shape, constants)
    rows = _rows(group, shape, sharing, chip, constants)
    units, span = units_of(chip), rows / sharing  # tokens of a tile
    new = np.maximum(group.new_tokens, 1.0)
    each = np.ceil(new / span - 1e-9)
    tiles = group.batch_size * (shape.heads * shape.used / sharing) * each
    half = 0.5 * np.minimum(span, new) if shape.causal else 0.0
    block: Count = ADAPTIVE_BLOCK if constants["rows"] == ADAPTIVE_ROWS else KEY_BLOCK
    if constants["rows"] == PAGED_ROWS:
        block = PAGED_BLOCK / np.minimum(shape.qk_dim, 256.0)
    keys = np.maximum(shape.pairs_of(group) / new + (half + 0.5 * block), block)
    longest = np.maximum(group.remaining_tokens + (new + 0.5 * block), block)
    if shape.window < np.inf:
        full = np.clip(1.0 - np.maximum(shape.window - group.remaining_tokens, 0.0) / new, 0.0, 1.0)
        skipped = group.remaining_tokens + 0.5 * (new + 1.0) - shape.pairs_of(group) / new
        keys = keys + full * (half + constants["window"]) + constants["skipped"] * skipped
        longest = np.minimum(longest, shape.window + span + 0.5 * block + constants["window"])
    elif shape.chunk:
        longest = np.minimum(longest, shape.chunk + 0.5 * block)
    key_s, tile_s = _key_s(shape, operator, chip, constants) * rows, constants["tile"] * 1e-6 * h100_cycle(chip)
    total = tiles * (tile_s + keys * key_s) / units
    longest = (tile_s + longest * key_s) * constants["lone"]
    if packed:
        split = np.minimum(longest, tile_s + SPLIT_WASTE * total + constants["split"] * 1e-6 * h100_cycle(chip))
        longest = np.where(tiles < SPLIT_BELOW * units, split, longest)
    p = constants["sharpness"]
    slowest: Count = (total**p + longest**p) ** (1.0 / p)
    return slowest


def _rows(group: Group, shape: AttentionShape, sharing: Count, chip: Chip, constants: Constants) -> Count:
    """Query rows of a tile.  FlashInfer's grow with the rows of a sequence and KV head: 16, 64, 128."""
    if constants["rows"] == 0.0:
        return _tile_rows(shape.qk_dim, chip.generation)
    if constants["rows"] != ADAPTIVE_ROWS:
        return constants["rows"]
    rows = group.new_tokens * sharing
    most = np.where((rows > 64.0) & (shape.qk_dim < 256.0), 128.0, 64.0)
    adaptive: Count = np.where(rows > ADAPTIVE_ROWS, most, ADAPTIVE_ROWS)
    return adaptive


def _sharing(group: Group, shape: AttentionShape, constants: Constants) -> Count:
    """Heads of a group that share tiles: all, none, or FlashAttention-2's, all for one token without a window."""
    if constants["rows"] in (0.0, ADAPTIVE_ROWS):
        return shape.heads / shape.kv_heads
    if constants["rows"] != PAGED_ROWS or shape.window < np.inf:
        return 1.0
    sharing: Count = np.where(group.new_tokens == 1.0, shape.heads / shape.kv_heads, 1.0)
    return sharing


def _key_s(shape: AttentionShape, operator: Operator, chip: Chip, constants: Constants) -> Count:
    """Seconds of a unit per query row and key: products, overlapped with the exponential."""
    units = units_of(chip)
    share = constants["compute"] * (1.0 + (constants["wide"] - 1.0) * (shape.qk_dim > 192.0))
    share = share * (1.0 + (constants["widest"] - 1.0) * (shape.qk_dim > 256.0))
    rate = chip.matrix_rate(operator.compute) * power.clock_share(chip) * np.minimum(share, 1.0)
    width = shape.qk_dim + shape.v_dim
    if constants["padded"]:
        width = sum(2.0 ** np.ceil(np.log2(part) - 1e-9) for part in (shape.qk_dim, shape.v_dim))
    products = 2.0 * width * units / rate
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
        Constant(name="floor", unit="us", meaning="shortest kernel", start=9.0, low=0.0, high=500.0),
        Constant(name="compute", unit="1", meaning="share of the dense peak", start=0.7, low=0.02, high=1.0),
        Constant(name="special", unit="1", meaning="share of the special-function rate", start=0.5, low=0.02, high=1.0),
        Constant(name="wide", unit="1", meaning="factor on compute, heads above 192", start=0.95, low=0.1, high=1.4),
        Constant(name="widest", unit="1", meaning="further factor, heads above 256", start=0.5, low=0.01, high=1.4),
        Constant(name="tile", unit="us", meaning="fixed time of a tile", start=2.5, low=0.0, high=50.0),
        Constant(name="sharpness", unit="1", meaning="p of longest tile and mean load", start=3.0, low=1.0, high=20.0),
        Constant(name="lone", unit="1", meaning="time of a tile alone over its share", start=1.0, low=1.0, high=8.0),
        Constant(name="memory", unit="1", meaning="share of the bandwidth", start=0.7, low=0.05, high=1.0),
        Constant(name="token", unit="ns", meaning="writing one token to the cache", start=1.5, low=0.0, high=100.0),
        Constant(name="cache", unit="ns", meaning="writing 512 elements of K", start=0.3, low=0.0, high=100.0),
        Constant(name="uneven", unit="us", meaning="extra time, heads of 192 elements", start=0.5, low=0.0, high=50.0),
        Constant(name="window", unit="token", meaning="keys read beyond a window", start=100.0, low=0.0, high=8192.0),
        Constant(name="skipped", unit="1", meaning="cost of a masked key over others", start=0.02, low=0.0, high=1.0),
        Constant(name="split", unit="us", meaning="reduction of split keys", start=7.0, low=0.0, high=50.0),
        Constant(
            name="padded", unit="1", meaning="1: heads are padded to a power of two (Triton)",
            start=0.0, low=0.0, high=1.0, choices=(0.0, 1.0),
        ),
        Constant(
            name="rows", unit="row", meaning="tile of a head; of a group: 0, FlashAttention's, 16, FlashInfer's",
            start=0.0, low=0.0, high=256.0, choices=(0.0, 128.0, 64.0, 32.0, ADAPTIVE_ROWS),
        ),
    ),
    rates=single_kernel(group_time),
    quantities=quantities,
    variant=partial(variant, decodes=False),
    equivalents=EQUIVALENTS,
    substitutes=SUBSTITUTES,
    limits=partial(limits, decodes=False),
)  # fmt: skip
