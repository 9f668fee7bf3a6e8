"""Flash-Decoding: split the keys of a head over idle units and combine the partial results."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Operator, Pass, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Group
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import ROW_BLOCKS, AttentionShape, block_rows

#: Keys of a block; a split has at least one block (FlashAttention's kBlockN for head_dim 128).
KEYS_PER_BLOCK = 128.0
#: Share of busy units from which nothing is split.  This and the next: num_splits_heuristic in
#: https://github.com/Dao-AILab/flash-attention/blob/main/csrc/flash_attn/flash_api.cpp
ENOUGH_BUSY_UNITS = 0.8
MAX_SPLITS = 128.0
#: Numbers of a partial result in addition to its d_v sums: a maximum and a sum of exponentials, all fp32.
PARTIAL_STATISTICS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """How partial results are merged.

    statistics: numbers of each in addition to its d_v sums.  value_flops: per sum.  scale_flops, exponentials: per
    partial result.
    """

    statistics: float
    value_flops: float
    scale_flops: float
    exponentials: float


#: Name of the kernel over the keys that all sequences have in common.
PREFIX_KERNEL = "attention_prefix"
#: To the maximum of all: a product and a sum per value; of maxima a difference, its exponential, a product and a sum.
RESCALED = Merge(statistics=PARTIAL_STATISTICS, value_flops=2.0, scale_flops=4.0, exponentials=1.0)
#: With one maximum chosen in advance (FlashDecoding++, arXiv 2311.01282, section 3): sums alone.
UNIFIED = Merge(statistics=1.0, value_flops=1.0, scale_flops=1.0, exponentials=0.0)


def flash_decoding(chip: Chip, splits: float | None = None, merge: Merge = RESCALED) -> Pass:
    """Split the keys of the flash kernel; the partial results go through device memory.

    Additional traffic: splits x (d_v + 2) x 4 bytes per query head and token, written and read.  Additional work:
    2 d_v + 4 vector FLOP per partial result, d_v per output.  splits: None for as many as fill the units once, with at
    least 128 keys each, and no split if heads and row blocks occupy 80 % of the units.  A given number applies if the
    queries of a KV head fill one row block (decode, verification).  One split changes nothing.
    Source: https://crfm.stanford.edu/2023/10/12/flashdecoding.html
    """
    if splits is None and chip.units is None:
        raise UserError(
            f"flash-decoding: the number of units of {chip.name} is unknown; set the splits: flash-decoding=8"
        )
    if chip.generation not in ROW_BLOCKS:
        raise UserError(
            f"flash-decoding: row blocks of kernels on {chip.name} are not published; try --attention flash"
        )

    def change(block: Block) -> Block:
        if any(operator.name == PREFIX_KERNEL for operator in block.operators):
            raise UserError("--attention flash-decoding: the kernels of --prefix-cache cascade split by themselves")
        operators: list[Operator] = []
        for operator in block.operators:
            operators += (
                _split(operator, chip, splits, merge) if operator.role is OperatorRole.ATTENTION else (operator,)
            )
        return replace(block, operators=tuple(operators))

    return lambda graph: graph.map_blocks(change)


def _split(operator: Operator, chip: Chip, requested: float | None, merge: Merge) -> tuple[Operator, ...]:
    shape = operator.shape
    assert isinstance(shape, AttentionShape)
    splits = [split_count(group, shape, chip, requested) for group in shape.groups]
    is_split = total(np.where(count > 1.0, 1.0, 0.0) for count in splits) > 0.0
    if not np.any(is_split):
        return (operator,)
    counts = (np.where(is_split, g.tokens * n, 0.0) for g, n in zip(shape.groups, splits, strict=True))
    partial_results = total(counts) * shape.heads
    partials = Tensor(
        name="attention_partials",
        elements=partial_results * (shape.v_dim + merge.statistics),
        dtype=DTYPES["fp32"],
    )
    (out, *others) = operator.writes
    unsplit = Access(out.tensor, np.where(is_split, 0.0, out.elements))
    return (
        replace(operator, writes=(unsplit, *others, whole(partials))),
        combine(operator, partials, partial_results, np.asarray(is_split, dtype=np.float64), merge),
    )


def combine(
    attention: Operator, partials: Tensor, partial_results: Count, where: Count, merge: Merge = RESCALED
) -> Operator:
    """The kernel that scales partial results to one maximum, adds them and divides by the sum of exponentials."""
    out, shape = attention.output, attention.shape
    assert isinstance(shape, AttentionShape)
    return Operator(
        name="attention_combine",
        kind=Kind.ATTENTION,
        compute=attention.compute,
        reads=(whole(partials),),
        writes=(Access(out, out.elements * where),),
        output_shape=attention.output_shape,
        vector_flops=partial_results * (merge.value_flops * shape.v_dim + merge.scale_flops) + out.elements * where,
        special_ops=partial_results * merge.exponentials,
        where=where,
    )


def split_count(group: Group, shape: AttentionShape, chip: Chip, requested: float | None) -> Count:
    """Number of units over which the keys of one head of one sequence are split.  requested: None for automatic."""
    queries = group.new_tokens * (shape.heads / shape.kv_heads)  # queries of one KV head share row blocks
    row_blocks = np.ceil(queries / block_rows(shape.qk_dim, chip.generation))
    key_blocks = np.ceil(group.keys(shape.window) / KEYS_PER_BLOCK)
    if requested is not None:
        return np.where(row_blocks > 1.0, 1.0, np.minimum(requested, key_blocks))
    assert chip.units is not None
    blocks = np.maximum(group.batch_size * shape.kv_heads * row_blocks, 1.0)  # a pass may have no sequence of a group
    most = np.minimum(np.minimum(key_blocks, np.floor(chip.units / blocks)), MAX_SPLITS)
    return np.where(blocks >= ENOUGH_BUSY_UNITS * chip.units, 1.0, np.maximum(most, 1.0))
