"""Split the keys of a head over units that its queries leave idle, and add the partial results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Operator, Pass, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Group
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import ROW_BLOCKS, AttentionShape, block_rows

#: Keys of a block: a split has one at least (FlashAttention's kBlockN for head_dim 128).
KEYS_PER_BLOCK = 128.0
#: Beyond this share of busy units nothing is split.  This and the next: num_splits_heuristic in
#: https://github.com/Dao-AILab/flash-attention/blob/main/csrc/flash_attn/flash_api.cpp
ENOUGH_BUSY_UNITS = 0.8
MAX_SPLITS = 128.0
#: A partial result has beside its d_v sums a maximum and a sum of exponentials, all fp32.
PARTIAL_STATISTICS = 2.0
#: Per partial result: difference of maxima, exponential, product and sum of the exponentials.
SCALE_FLOPS = 4.0


def flash_decoding(chip: Chip, splits: float | None = None) -> Pass:
    """Split the flash kernel's keys; the partial results go through device memory.

    Moved besides: written and read, splits x (d_v + 2) x 4 bytes per query head and token; added: 2 d_v + 4 vector
    FLOP per partial result, d_v per output.  splits: None takes as many as fill the units once, each of 128 keys at
    least, and none where heads and row blocks occupy 80 % of them.  A number is taken where the queries of a KV head
    fill one row block (decode, verification).  Where there is one split nothing changes.
    Source: https://crfm.stanford.edu/2023/10/12/flashdecoding.html
    """
    if splits is None and chip.units is None:
        raise UserError(f"flash-decoding: the units of {chip.name} are unknown; say how many splits: flash-decoding=8")
    if chip.generation not in ROW_BLOCKS:
        raise UserError(f"flash-decoding: nobody publishes row blocks of kernels on {chip.name}; try --attention flash")

    def change(block: Block) -> Block:
        operators: list[Operator] = []
        for operator in block.operators:
            operators += _split(operator, chip, splits) if operator.role is OperatorRole.ATTENTION else (operator,)
        return replace(block, operators=tuple(operators))

    return lambda graph: graph.map_blocks(change)


def _split(operator: Operator, chip: Chip, asked: float | None) -> tuple[Operator, ...]:
    shape = operator.shape
    assert isinstance(shape, AttentionShape)
    splits = [split_count(group, shape, chip, asked) for group in shape.groups]
    some = total(np.where(count > 1.0, 1.0, 0.0) for count in splits) > 0.0
    if not np.any(some):
        return (operator,)
    counts = (np.where(some, g.tokens * n, 0.0) for g, n in zip(shape.groups, splits, strict=True))
    partial_results = total(counts) * shape.heads
    partials = Tensor(
        name="attention_partials",
        elements=partial_results * (shape.v_dim + PARTIAL_STATISTICS),
        dtype=DTYPES["fp32"],
    )
    (out, *others) = operator.writes
    at_once = Access(out.tensor, np.where(some, 0.0, out.elements))
    return (
        replace(operator, writes=(at_once, *others, whole(partials))),
        _combine(operator, partials, partial_results, np.asarray(some, dtype=np.float64)),
    )


def _combine(attention: Operator, partials: Tensor, partial_results: Count, where: Count) -> Operator:
    """Scale the partial results to one maximum, add them, divide by the sum of exponentials."""
    out, shape = attention.output, attention.shape
    assert isinstance(shape, AttentionShape)
    return Operator(
        name="attention_combine",
        kind=Kind.ATTENTION,
        compute=attention.compute,
        reads=(whole(partials),),
        writes=(Access(out, out.elements * where),),
        output_shape=attention.output_shape,
        vector_flops=partial_results * (2.0 * shape.v_dim + SCALE_FLOPS) + out.elements * where,
        special_ops=partial_results * 1.0,
        where=where,
    )


def split_count(group: Group, shape: AttentionShape, chip: Chip, asked: float | None) -> Count:
    """Over how many units the keys of one head of one sequence are split."""
    queries = group.new_tokens * (shape.heads / shape.kv_heads)  # those of one KV head share their row blocks
    row_blocks = np.ceil(queries / block_rows(shape.qk_dim, chip.generation))
    key_blocks = np.ceil(group.keys(shape.window) / KEYS_PER_BLOCK)
    if asked is not None:
        return np.where(row_blocks > 1.0, 1.0, np.minimum(asked, key_blocks))
    assert chip.units is not None
    blocks = np.maximum(group.batch_size * shape.kv_heads * row_blocks, 1.0)  # a pass may have no sequence of a group
    most = np.minimum(np.minimum(key_blocks, np.floor(chip.units / blocks)), MAX_SPLITS)
    return np.where(blocks >= ENOUGH_BUSY_UNITS * chip.units, 1.0, np.maximum(most, 1.0))
