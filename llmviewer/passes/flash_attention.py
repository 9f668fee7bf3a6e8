"""Replace the eager attention kernels by one that keeps the scores on the chip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.errors import unknown
from llmviewer.hardware import Chip
from llmviewer.ir import Access, Block, Count, Operator, Pass, Place
from llmviewer.ops.attention import AttentionInputs, AttentionShape, flash
from llmviewer.technique import Change, Parameter, Technique, adding, numbers
from llmviewer.workload import Group

#: Query rows of one thread block, by head_dim: {largest head_dim: rows}.
#: FlashAttention-2: https://github.com/Dao-AILab/flash-attention/blob/main/csrc/flash_attn/src/flash_fwd_launch_template.h
#: FlashAttention-3 (Hopper): https://github.com/Dao-AILab/flash-attention/blob/main/hopper/tile_size.h
FLASH_2_ROWS = {64: 128, 128: 128, 256: 64}
FLASH_3_ROWS = {64: 192, 128: 128, 256: 128}
ROWS_BY_GENERATION = {"hopper": FLASH_3_ROWS}


def flash_attention(chip: Chip) -> Pass:
    """Fuse qk_matmul, softmax and sv_matmul into `attention` wherever a block runs them one after another.

    FLOPs drop to the attended pairs, scores are no longer moved, Q is read and O written once, K and V once from
    device memory.  Every row block of queries reads K and V again.  Blocks in flight (one per unit) sweep them
    together, so one wave costs one read of device memory and the L2 serves the rest; further waves of the same head
    hit the L2 too where the heads in flight fit it, else they read device memory again.  A chip whose units or L2 are
    unknown reads once.  Sources: arXiv 2205.14135, 2307.08691.
    """

    def change(block: Block) -> Block:
        names = [op.name for op in block.operators]
        if "qk_matmul" not in names:
            return block
        at = names.index("qk_matmul")
        qk, softmax, sv = block.operators[at : at + 3]
        shape = qk.shape
        assert isinstance(shape, AttentionShape)
        inputs = AttentionInputs.of((qk, softmax, sv))
        fused = replace(flash(shape, inputs, rereads(shape, inputs, chip)), compute=qk.compute)
        after = tuple(_reading_fused(op) for op in block.operators[at + 3 :])
        return replace(block, operators=(*block.operators[:at], fused, *after))

    return lambda graph: graph.map_blocks(change)


def _reading_fused(operator: Operator) -> Operator:
    """Whoever read the output of sv_matmul, or what was made of it, now reads that of `attention`."""
    if not any(a.tensor.name.startswith("sv_matmul") for a in (*operator.reads, *operator.writes)):
        return operator
    reads, writes = (tuple(map(_renamed, accesses)) for accesses in (operator.reads, operator.writes))
    return replace(operator, name=_fused_name(operator.name), reads=reads, writes=writes)


def _renamed(access: Access) -> Access:
    return Access(replace(access.tensor, name=_fused_name(access.tensor.name)), access.elements)


def _fused_name(name: str) -> str:
    """`sv_matmul_quantize` becomes `attention_quantize`."""
    return f"attention{name.removeprefix('sv_matmul')}" if name.startswith("sv_matmul") else name


def block_rows(head_dim: Count, generation: str) -> Count:
    """Query rows of a thread block."""
    (small, few), (middle, some), (_, many) = ROWS_BY_GENERATION.get(generation, FLASH_2_ROWS).items()
    return np.where(head_dim <= small, few, np.where(head_dim <= middle, some, many))


def rereads(shape: AttentionShape, inputs: AttentionInputs, chip: Chip) -> tuple[Access, ...]:
    """K and V read again for row blocks after the first: from the L2, and in waves from device memory."""
    if chip.units is None or chip.l2_bytes is None:
        return ()
    rows = block_rows(shape.qk_dim, chip.generation)
    stored = sum(a.tensor.dtype.bytes * a.elements for a in inputs.cached())
    per_key = stored / (shape.keys() * shape.kv_heads)  # bytes of K and V of one key and one KV head
    again_l2: Count = 0.0
    again_device: Count = 0.0
    for group in shape.groups:
        extra, waves = _passes(group, shape, chip, rows, per_key)
        moved = group.batch_size * group.keys(shape.window) / shape.keys()
        again_device = again_device + moved * waves
        again_l2 = again_l2 + moved * (extra - waves)
    return tuple(
        Access(replace(a.tensor, place=place), a.elements * times)
        for place, times in ((Place.L2, again_l2), (Place.DEVICE, again_device))
        for a in inputs.cached()
    )


def _passes(group: Group, shape: AttentionShape, chip: Chip, rows: Count, per_key: Count) -> tuple[Count, Count]:
    """(reads of K and V beyond the first, those of them that reach device memory) for one head of one sequence.

    A causal row block reads only the keys before its end: the sum over blocks is the attended share of all pairs.
    """
    assert chip.units is not None and chip.l2_bytes is not None
    keys = group.keys(shape.window)
    # grouped queries of one KV head are packed into the same rows (FlashAttention's decode kernels do; prefill
    # kernels run one query head per block, which read the same K and V)
    queries = group.new_tokens * (shape.heads / shape.kv_heads)
    blocks = np.ceil(queries / rows)
    share = group.attended_pairs(shape.window) / (group.new_tokens * keys)
    extra = np.maximum(blocks * share - 1.0, 0.0)
    heads_in_flight = np.ceil(chip.units / blocks)
    fits = heads_in_flight * keys * per_key <= chip.l2_bytes
    waves = np.ceil(blocks / chip.units)
    return extra, np.where(fits, 0.0, np.minimum(waves - 1.0, extra))


#: `flash-decoding=8`: so many splits.
_SPLITS = Parameter(name="splits", low=1, high=128, whole=True)


def _make(text: str) -> Change:
    name, equals, splits = text.partition("=")
    flash_kernel = adding("flash_attention", flash_attention)
    if text == "flash":
        return flash_kernel
    if name != "flash-decoding":
        raise unknown("attention", text, ("flash", "eager", "flash-decoding", "flash-decoding=SPLITS"))
    from llmviewer.passes.flash_decoding import flash_decoding

    asked = numbers("--attention flash-decoding", splits, (_SPLITS,))["splits"] if equals else None
    split = adding(text, lambda chip: flash_decoding(chip, asked))
    return lambda system: split(flash_kernel(system))


TECHNIQUE = Technique(
    name="attention",
    kind="attention",
    summary="Keeps the scores on the chip and computes only the pairs the mask lets through; the default.",
    formula="2 heads pairs (d_qk + d_v) over attended pairs n c + n(n+1)/2; traffic Q + K + V + O; "
    "flash-decoding writes and reads splits (d_v + 2) fp32 per query head besides",
    source="FlashAttention arXiv 2205.14135, FlashAttention-2 arXiv 2307.08691, "
    "Flash-Decoding https://crfm.stanford.edu/2023/10/12/flashdecoding.html",
    example="llmviewer analyze llama-2-7b --hardware a6000 --attention flash",
    make=_make,
)
