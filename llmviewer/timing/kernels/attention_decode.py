"""Decode attention: few queries over a long cache; one task per sequence and KV head, split over the units by keys.

Flash-Decoding (https://crfm.stanford.edu/2023/10/12/flashdecoding.html) as FlashAttention-3 and TensorRT-LLM run it.
Tasks have a fixed cost, so many sequences with short contexts take longer than their bytes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from llmviewer.core.counts import Array, Count, present
from llmviewer.core.ir import Operator, Place, Role
from llmviewer.core.workload import Group
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import AttentionShape
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

#: Query rows of a task's tile, which grouped heads and draft tokens share.
TILE_ROWS = 64.0
#: Kernels whose tasks are not of TILE_ROWS, by the value of the constant `kernel`, and the query rows of Triton's
#: (https://github.com/sgl-project/sglang, python/sglang/srt/layers/attention/triton_ops/decode_attention.py).
FLASH_2, TRITON = 1.0, 2.0
TRITON_ROWS = 16.0
#: Keys are split into at most n blocks of this minimum size, and a task has at most sqrt(8 n) blocks
#: (computeMultiBlockCount, decoderXQAImplCommon.h of https://github.com/NVIDIA/TensorRT-LLM).
MIN_BLOCK_KEYS, BLOCK_LIMIT_FACTOR = 128.0, 8.0
#: p of the overlap of a task's fixed time with the keys of other tasks on the same unit.
OVERLAP = 1.5
#: Largest heads for which some engines rotate queries in a separate kernel [element].
MAX_NARROW_HEAD = 64.0
#: TensorRT-LLM has no grouped kernel for this many heads per KV head, and uses its kernel for single heads if there is
#: little work: tasks x blocks of keys below a quarter of the units (decoderXQARunner.h of
#: https://github.com/NVIDIA/TensorRT-LLM).
MIN_UNGROUPED_HEADS, MIN_GROUPED_LOAD = 48.0, 0.25


def group_time(group: Group, operator: Operator, chip: Chip, constants: Constants) -> GroupTime:
    """Time of one group: smooth maximum of mean load per unit, longest task and bytes, plus launch and sequences."""
    shape = operator.shape
    assert isinstance(shape, AttentionShape)
    uneven = constants["uneven"] * ((shape.qk_dim > 128.0) & (shape.qk_dim < 256.0))
    floor: Any = constants["floor"] + uneven + constants["width"] * shape.v_dim / 128.0
    narrow = constants["narrow"] * (shape.qk_dim <= MAX_NARROW_HEAD)
    tasks, single = _tasks(group, operator, shape, chip, constants)
    if single is not None:
        floor = floor + single * (constants["head_floor"] - constants["floor"]) - single * narrow
    floor = floor + narrow
    partial = constants["partial"] * group.tokens * shape.heads * shape.v_dim
    held = power.held_share(partial, chip)
    partial_s = partial * (held / power.rate(chip) + (1.0 - held) / chip.bandwidth_bytes_per_s)
    return GroupTime(
        fixed_s=floor * 1e-6 + group.batch_size * (constants["sequence"] * 1e-9) + partial_s,
        tiles_s=tasks,
        byte_s=_byte_s(operator, shape, chip, constants),
        sharpness=2.0,
    )


def _tasks(
    group: Group, operator: Operator, shape: AttentionShape, chip: Chip, constants: Constants
) -> tuple[Count, Array | None]:
    """Seconds of all tasks; and 1.0 where heads of a group run as separate tasks, None if no kernel does that."""
    keys, units = shape.keys_of(group), units_of(chip)
    history = group.remaining_tokens + group.new_tokens
    rows = shape.heads / shape.kv_heads * np.maximum(group.new_tokens, 1.0)
    pairs = group.batch_size * shape.kv_heads * shape.used
    task_us = constants["task"] + constants["task_width"] * shape.v_dim / 128.0
    key_ns = constants["key"] + constants["key_width"] * (shape.qk_dim + shape.v_dim) / 256.0
    blocks = np.ceil(rows / (TRITON_ROWS if constants["kernel"] == TRITON else TILE_ROWS) - 1e-9)
    plain = _plain_kernel(shape, constants)
    blocks = np.where(plain, rows, blocks) if plain is not None else blocks
    task_us = task_us + constants["output"] * (rows / blocks) * shape.v_dim / 1024.0
    beyond = np.minimum(history - keys, constants["window"])
    key_blocks = _key_blocks(pairs, history, constants, units)
    single = _single_heads(pairs, history, shape, constants, units)
    if single is not None:
        blocks = blocks + single * (rows - blocks)
        task_us = task_us + single * (constants["head_task"] - task_us)
        key_ns = key_ns + single * (constants["head_key"] * (shape.qk_dim + shape.v_dim) / 256.0 - key_ns)
        beyond = beyond * (1.0 - single)
        key_blocks = None if key_blocks is None else key_blocks * (1.0 - single)
    least_s = 2.0 * (rows / blocks) * (shape.qk_dim + shape.v_dim) * units / chip.matrix_rate(operator.compute)
    cycle = h100_cycle(chip)
    work_s = (keys + beyond) * np.maximum(key_ns * cycle * 1e-9, least_s)
    if plain is not None:
        key_blocks = np.where(plain, 1.0, 0.0 if key_blocks is None else key_blocks)
    slowest = _slowest(pairs * blocks / units, task_us * cycle * 1e-6, work_s, key_blocks, constants)
    return slowest, single


def _plain_kernel(shape: AttentionShape, constants: Constants) -> Any:
    """Mask of shapes that FlashAttention-2 runs with its kernel for prompts; None for engines with other kernels.

    One head per task and no splits of its keys: heads share a task only where a KV head has several of them and no
    window is set (mha_varlen_fwd of https://github.com/Dao-AILab/flash-attention, csrc/flash_attn/flash_api.cpp).
    """
    return (shape.heads <= shape.kv_heads) | (shape.window < np.inf) if constants["kernel"] == FLASH_2 else None


def _slowest(load: Count, task_s: Count, work_s: Count, key_blocks: Array | None, constants: Constants) -> Count:
    """Smooth maximum of all tasks, `load` of them per unit, and of the longest task [s].

    key_blocks: blocks of keys of a task; 0 or None: as many as balance the units.
    """
    each: Count = task_s if key_blocks is None else task_s * np.maximum(key_blocks, 1.0)
    total = load * (each**OVERLAP + work_s**OVERLAP) ** (1.0 / OVERLAP)
    divided = np.maximum(total, work_s / constants["splits"]) + constants["split"] * 1e-6
    keys_s: Count = np.minimum(work_s, divided)
    if key_blocks is not None:
        split_s = work_s / np.maximum(key_blocks, 1.0) + constants["split"] * 1e-6 * (key_blocks > 1.0)
        keys_s = np.where(key_blocks >= 1.0, split_s, keys_s)
    longest, p = (task_s + keys_s) * constants["lone"], constants["sharpness"]
    slowest: Count = (total**p + longest**p) ** (1.0 / p)
    return slowest


def _key_blocks(pairs: Count, history: Count, constants: Constants, units: Count) -> Array | None:
    """Blocks of keys of a task in engines that split by sequence length, even if a window leaves blocks idle."""
    waves = constants["waves"]
    if not waves:
        return None
    blocks = np.maximum(np.floor(history / MIN_BLOCK_KEYS), 1.0)
    most = np.maximum(np.floor(waves * units / np.maximum(pairs, 1.0)), 1.0)
    key_blocks: Array = np.minimum(np.minimum(blocks, np.round(np.sqrt(BLOCK_LIMIT_FACTOR * blocks))), most)
    return key_blocks


def _single_heads(
    pairs: Count, history: Count, shape: AttentionShape, constants: Constants, units: Count
) -> Array | None:
    """1.0 where every query head is a separate task; None if the engine has no such kernel."""
    if not constants["apart"] or bool(np.any(shape.qk_dim != shape.v_dim)):
        return None
    grouped = shape.heads / shape.kv_heads
    small = pairs * np.maximum(np.floor(history / MIN_BLOCK_KEYS), 1.0) < MIN_GROUPED_LOAD * units
    small = small & (shape.qk_dim <= constants["apart"])
    single: Array = np.where((grouped <= 1.0) | (grouped >= MIN_UNGROUPED_HEADS) | small, 1.0, 0.0)
    return single


def _byte_s(operator: Operator, shape: AttentionShape, chip: Chip, constants: Constants) -> Count:
    """Seconds per byte of device memory, including reads from the L2 (with several groups, the L2 serves prompts)."""
    byte_s = 1.0 / (chip.bandwidth_bytes_per_s * power.read_share(chip) * constants["memory"])
    again: Any = 0.0  # reads of the keys for further tasks of a group, which run far apart
    if constants["kernel"] == TRITON:
        again = np.ceil(shape.heads / shape.kv_heads / TRITON_ROWS - 1e-9) - 1.0
    elif constants["kernel"] == FLASH_2 and shape.window < np.inf:
        again = shape.heads / shape.kv_heads - 1.0
    if np.any(again):
        held = power.held_share(operator.read_bytes(Role.CACHE) / shape.kv_heads, chip)
        byte_s = byte_s * (1.0 + again * (1.0 - held))
    warm = 0.0 if len(shape.groups) > 1 else operator.moved_bytes(Place.L2)
    if not present(warm):
        return byte_s
    return byte_s + warm / (np.maximum(operator.traffic_bytes, 1.0) * power.rate(chip))


FAMILY = Family(
    name="attention_decode",
    constants=(
        Constant(name="floor", unit="us", meaning="shortest kernel", start=7.0, low=0.0, high=500.0),
        Constant(name="width", unit="us", meaning="and per 128 elements of a head", start=1.0, low=0.0, high=20.0),
        Constant(name="uneven", unit="us", meaning="extra time, heads of 192 elements", start=0.5, low=0.0, high=50.0),
        Constant(name="narrow", unit="us", meaning="extra time, heads of 64 elements", start=0.0, low=0.0, high=20.0),
        Constant(name="sequence", unit="ns", meaning="each sequence", start=5.0, low=0.0, high=200.0),
        Constant(name="task", unit="us", meaning="fixed time of a task", start=2.0, low=0.0, high=50.0),
        Constant(name="task_width", unit="us", meaning="and per 128 elements of a head", start=0.0, low=0.0, high=20.0),
        Constant(name="output", unit="us", meaning="1024 output elements of a task", start=0.1, low=0.0, high=10.0),
        Constant(name="key", unit="ns", meaning="each key of a task", start=2.5, low=0.0, high=200.0),
        Constant(name="key_width", unit="ns", meaning="and per 128 elements of a key", start=4.0, low=0.0, high=200.0),
        Constant(name="sharpness", unit="1", meaning="p of longest task and mean load", start=3.0, low=1.0, high=20.0),
        Constant(name="memory", unit="1", meaning="share of the bandwidth", start=0.9, low=0.05, high=1.0),
        Constant(name="split", unit="us", meaning="reduction of split keys", start=3.0, low=0.0, high=50.0),
        Constant(name="splits", unit="1", meaning="most blocks of keys of a task", start=32.0, low=1.0, high=256.0),
        Constant(name="lone", unit="1", meaning="time of a task alone over its share", start=1.0, low=1.0, high=8.0),
        Constant(name="partial", unit="byte", meaning="partial results per output", start=0.0, low=0.0, high=1000.0),
        Constant(name="window", unit="token", meaning="keys read beyond a window", start=150.0, low=0.0, high=8192.0),
        Constant(
            name="kernel", unit="1", meaning="0: a group's heads share tasks; 1: FlashAttention-2; 2: Triton, 16 heads",
            start=0.0, low=0.0, high=2.0, choices=(0.0, FLASH_2, TRITON),
        ),
        Constant(
            name="apart", unit="element", meaning="largest heads that run one by one if there is little work; 0: none",
            start=0.0, low=0.0, high=1024.0, choices=(0.0, 1.0, 1024.0),
        ),
        Constant(
            name="waves", unit="1", meaning="blocks of keys per unit, split by sequence length; 0: as many as balance",
            start=0.0, low=0.0, high=64.0, choices=(0.0, 8.0),
        ),
        Constant(name="head_floor", unit="us", meaning="shortest single-head kernel", start=7.0, low=0.0, high=200.0),
        Constant(name="head_task", unit="us", meaning="fixed time of a head", start=1.2, low=0.0, high=50.0),
        Constant(name="head_key", unit="ns", meaning="128 elements of a head's key", start=8.5, low=0.0, high=200.0),
    ),
    rates=single_kernel(group_time),
    quantities=quantities,
    variant=partial(variant, decodes=True),
    equivalents=EQUIVALENTS,
    substitutes=SUBSTITUTES,
    limits=partial(limits, decodes=True),
)  # fmt: skip
