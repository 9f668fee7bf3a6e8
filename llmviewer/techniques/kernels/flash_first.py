"""The first FlashAttention: blocks of keys outside, so that queries, outputs and statistics move once per block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Operator, Pass, Role, Tensor
from llmviewer.core.kinds import OperatorRole
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import AttentionShape

#: Matrices of a block that the on-chip memory holds: of Q, K, V and O.
MATRICES = 4.0
#: Numbers per row that move beside the output: its maximum and its sum of exponentials.
STATISTICS = 2.0


def flash_first(chip: Chip) -> Pass:
    """Order the loops of the flash kernel as FlashAttention-1 does (arXiv 2205.14135, algorithm 1).

    A block has M / 4d keys, of M numbers on the chip and d per head.  For every block of keys, Q is read, and O and two
    statistics per row are read and written: blocks x (3 N d + 4 N) numbers per head, beside K and V, which are read
    once.  This is Theta(N^2 d^2 / M).
    """
    if chip.on_chip_bytes_per_unit is None:
        raise UserError(f"--attention flash-1: the on-chip memory per unit of {chip.name} is unknown; use flash")

    def change(block: Block) -> Block:
        return replace(block, operators=tuple(_reordered(one, chip) for one in block.operators))

    return lambda graph: graph.map_blocks(change)


def _reordered(operator: Operator, chip: Chip) -> Operator:
    if operator.role is not OperatorRole.ATTENTION:
        return operator
    shape = operator.shape
    assert isinstance(shape, AttentionShape)
    q, *others = operator.reads
    (out,) = operator.writes
    times = _blocks(shape, q.tensor.dtype.bytes, chip)
    statistics = Tensor(
        name="attention_statistics", elements=shape.queries() * (shape.heads * STATISTICS), dtype=DTYPES["fp32"]
    )
    moved = Access(statistics, statistics.elements * times)
    once = {access.tensor.name: access for access in reversed(others) if access.tensor.role is Role.CACHE}
    extra = (access for access in others if access.tensor.role is not Role.CACHE)
    outputs = Access(out.tensor, out.elements * times)
    reads = (Access(q.tensor, q.elements * times), *once.values(), *extra, outputs, moved)
    return replace(operator, reads=reads, writes=(outputs, moved))


def _blocks(shape: AttentionShape, width: float, chip: Chip) -> Count:
    """Blocks of keys, as a mean over queries.  width: bytes of a number."""
    assert chip.on_chip_bytes_per_unit is not None
    numbers = chip.on_chip_bytes_per_unit / width
    keys = np.maximum(np.floor(numbers / (MATRICES * np.maximum(shape.qk_dim, shape.v_dim))), 1.0)
    counted = total(group.tokens * np.ceil(shape.keys_of(group) / keys) for group in shape.groups)
    return counted / np.maximum(shape.queries(), 1.0)
