"""Attention of a few queries over a long cache: a task per sequence and KV head, divided over the units by keys.

Flash-Decoding (https://crfm.stanford.edu/2023/10/12/flashdecoding.html) as FlashAttention-3 and TensorRT-LLM run it.
Tasks cost time before their keys, so many sequences of short contexts are slower than their bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.ir import Operator, Place
from llmviewer.core.workload import Group
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import AttentionShape
from llmviewer.timing.kernels.attention import TWINS, GroupTime, alone, covers, variant
from llmviewer.timing.kernels.clock import units_of
from llmviewer.timing.kernels.family import Constant, Constants, Family

#: Query rows of a task: grouped heads and drafted tokens fill one such tile.
ROWS = 64.0
#: Keys that are worth a block of their own when keys are divided; most blocks of a task are the root of so many times
#: what its keys are worth (computeMultiBlockCount, decoderXQAImplCommon.h of https://github.com/NVIDIA/TensorRT-LLM).
LEAST_KEYS, MOST_BLOCKS = 128.0, 8.0
#: p by which the start of a unit's tasks and the keys of others beside them overlap.
OVERLAP = 1.5
#: Heads up to which some kernels do not rotate queries themselves but have it done before [element].
NARROW = 64.0
#: Bandwidth of the L2 over that of device memory where it is not published (H100: 5.5 of 3.35 TB/s, 0.9 of it reached).
L2_SPEED = 1.5
#: TensorRT-LLM has no kernel for so many heads per KV head, and for small work takes the one for single heads: tasks x
#: blocks of keys below a quarter of the units (decoderXQARunner.h of https://github.com/NVIDIA/TensorRT-LLM).
MOST_GROUPED, LEAST_TASKS = 48.0, 0.25


def part(group: Group, operator: Operator, chip: Chip, constants: Constants) -> GroupTime:
    """Time of one group: tasks over all units and the longest one; bytes beside them; launch and sequences besides."""
    shape = operator.shape
    assert isinstance(shape, AttentionShape)
    uneven = constants["uneven"] * ((shape.qk_dim > 128.0) & (shape.qk_dim < 256.0))
    floor: Any = constants["floor"] + uneven + constants["width"] * shape.v_dim / 128.0
    narrow = constants["narrow"] * (shape.qk_dim <= NARROW)
    tasks, apart = _tasks(group, operator, shape, chip, constants)
    if apart is not None:
        floor = floor + apart * (constants["head_floor"] - constants["floor"]) - apart * narrow
    floor = floor + narrow
    return GroupTime(
        fixed_s=floor * 1e-6 + group.batch_size * (constants["sequence"] * 1e-9),
        tiles_s=tasks,
        byte_s=_byte_s(operator, shape, chip, constants),
        sharpness=2.0,
    )


def _tasks(
    group: Group, operator: Operator, shape: AttentionShape, chip: Chip, constants: Constants
) -> tuple[Count, Array | None]:
    """Seconds of all tasks; and 1.0 where heads of a group run apart, None where no such kernel is."""
    keys, units = shape.keys_of(group), units_of(chip)
    history = group.held + group.new_tokens
    rows = shape.heads / shape.kv_heads * np.maximum(group.new_tokens, 1.0)
    pairs = group.batch_size * shape.kv_heads * shape.used
    task_us = constants["task"] + constants["task_width"] * shape.v_dim / 128.0
    task_us = task_us + constants["output"] * rows * shape.v_dim / 1024.0
    key_ns = constants["key"] + constants["key_width"] * (shape.qk_dim + shape.v_dim) / 256.0
    blocks = np.ceil(rows / ROWS - 1e-9)
    beyond = np.minimum(history - keys, constants["window"])
    parts = _parts(pairs, history, constants, units)
    apart = _apart(pairs, history, shape, constants, units)
    if apart is not None:
        blocks = blocks + apart * (rows - blocks)
        task_us = task_us + apart * (constants["head_task"] - task_us)
        key_ns = key_ns + apart * (constants["head_key"] * (shape.qk_dim + shape.v_dim) / 256.0 - key_ns)
        beyond = beyond * (1.0 - apart)
        parts = None if parts is None else parts * (1.0 - apart)
    least_s = 2.0 * (rows / blocks) * (shape.qk_dim + shape.v_dim) * units / chip.matrix_rate(operator.compute)
    work_s = (keys + beyond) * np.maximum(key_ns * 1e-9, least_s)
    slowest = _slowest(pairs * blocks / units, task_us * 1e-6, work_s, parts, constants)
    return slowest, apart


def _slowest(load: Count, task_s: Count, work_s: Count, parts: Array | None, constants: Constants) -> Count:
    """Seconds of all tasks, `load` of them a unit, beside those of the longest.

    parts: blocks of keys of a task; 0, or none at all: as many as even out the units.
    """
    each: Count = task_s if parts is None else task_s * np.maximum(parts, 1.0)
    total = load * (each**OVERLAP + work_s**OVERLAP) ** (1.0 / OVERLAP)
    divided = np.maximum(total, work_s / constants["splits"]) + constants["split"] * 1e-6
    alone: Count = np.minimum(work_s, divided)
    if parts is not None:
        ruled = work_s / np.maximum(parts, 1.0) + constants["split"] * 1e-6 * (parts > 1.0)
        alone = np.where(parts >= 1.0, ruled, alone)
    longest, p = task_s + alone, constants["sharpness"]
    slowest: Count = (total**p + longest**p) ** (1.0 / p)
    return slowest


def _parts(pairs: Count, history: Count, constants: Constants, units: Count) -> Array | None:
    """Blocks of keys of a task where an engine goes by a sequence's length, even if a window leaves them idle."""
    waves = constants["waves"]
    if not waves:
        return None
    worth = np.maximum(np.floor(history / LEAST_KEYS), 1.0)
    most = np.maximum(np.floor(waves * units / np.maximum(pairs, 1.0)), 1.0)
    parts: Array = np.minimum(np.minimum(worth, np.round(np.sqrt(MOST_BLOCKS * worth))), most)
    return parts


def _apart(pairs: Count, history: Count, shape: AttentionShape, constants: Constants, units: Count) -> Array | None:
    """1.0 where every query head is a task of its own."""
    if not constants["apart"] or bool(np.any(shape.qk_dim != shape.v_dim)):
        return None
    grouped = shape.heads / shape.kv_heads
    small = pairs * np.maximum(np.floor(history / LEAST_KEYS), 1.0) < LEAST_TASKS * units
    small = small & (shape.qk_dim <= constants["apart"])
    alone: Array = np.where((grouped <= 1.0) | (grouped >= MOST_GROUPED) | small, 1.0, 0.0)
    return alone


def _byte_s(operator: Operator, shape: AttentionShape, chip: Chip, constants: Constants) -> Count:
    """Seconds per byte of device memory, with what comes from the L2 instead (among several groups a prompt's)."""
    byte_s = 1.0 / (chip.bandwidth_bytes_per_s * constants["memory"])
    warm = 0.0 if len(shape.groups) > 1 else operator.moved_bytes(Place.L2)
    if not np.any(warm):
        return byte_s
    return byte_s + warm / (np.maximum(operator.traffic_bytes, 1.0) * (L2_SPEED * chip.bandwidth_bytes_per_s))


FAMILY = Family(
    name="attention_decode",
    constants=(
        Constant(name="floor", unit="us", meaning="shortest kernel", start=7.0, low=0.0, high=200.0),
        Constant(name="width", unit="us", meaning="and each 128 elements of a head", start=1.0, low=0.0, high=20.0),
        Constant(name="uneven", unit="us", meaning="heads of 192 elements", start=0.5, low=0.0, high=50.0),
        Constant(name="narrow", unit="us", meaning="heads of 64 elements", start=0.0, low=0.0, high=20.0),
        Constant(name="sequence", unit="ns", meaning="each sequence", start=5.0, low=0.0, high=200.0),
        Constant(name="task", unit="us", meaning="each task before its keys", start=2.0, low=0.0, high=50.0),
        Constant(name="task_width", unit="us", meaning="and 128 elements of a head", start=0.0, low=0.0, high=20.0),
        Constant(name="output", unit="us", meaning="1024 elements a task writes", start=0.1, low=0.0, high=10.0),
        Constant(name="key", unit="ns", meaning="a task's key", start=2.5, low=0.0, high=200.0),
        Constant(name="key_width", unit="ns", meaning="and 128 elements of it", start=4.0, low=0.0, high=200.0),
        Constant(name="sharpness", unit="1", meaning="of longest task and mean load", start=3.0, low=1.0, high=20.0),
        Constant(name="memory", unit="1", meaning="share of the bandwidth", start=0.9, low=0.05, high=1.0),
        Constant(name="split", unit="us", meaning="to reduce divided keys", start=3.0, low=0.0, high=50.0),
        Constant(name="splits", unit="1", meaning="most parts of a task", start=32.0, low=4.0, high=256.0),
        Constant(name="window", unit="token", meaning="keys beyond a window", start=150.0, low=0.0, high=8192.0),
        Constant(
            name="apart", unit="element", meaning="largest heads whose small work runs head by head; 0: none does",
            start=0.0, low=0.0, high=1024.0, choices=(0.0, 1.0, 1024.0),
        ),
        Constant(
            name="waves", unit="1", meaning="blocks of keys a unit by the length of a sequence; 0: whatever evens out",
            start=0.0, low=0.0, high=64.0, choices=(0.0, 8.0),
        ),
        Constant(name="head_floor", unit="us", meaning="shortest such kernel", start=7.0, low=0.0, high=200.0),
        Constant(name="head_task", unit="us", meaning="each head before its keys", start=1.2, low=0.0, high=50.0),
        Constant(name="head_key", unit="ns", meaning="128 elements of its key", start=8.5, low=0.0, high=200.0),
    ),
    rates=alone(part),
    covers=covers,
    variant=variant,
    twins=TWINS,
)  # fmt: skip
