"""`--attention`: one kernel that keeps scores on the chip instead of three eager ones, cascades, split keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.counts import Count, present, total
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.errors import UserError, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Operator, Pass, Place, Role, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Group
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import ROW_BLOCKS, AttentionInputs, AttentionShape, block_rows, flash
from llmviewer.techniques.technique import Change, Technique, Whole, add_pass, refusing
from llmviewer.timing.roofline import ideal

#: Builds the attention kernel of a shape and its inputs.
Kernel = Callable[[AttentionShape, AttentionInputs], Operator]
#: Partial results of a query and head: over the common keys, and over its sequence's own.
PARTS = 2.0


def has_common_keys(shape: AttentionShape) -> bool:
    """Whether sequences have cached keys in common that every query attends to.

    Layers with a window, chunks or selected keys attend to others; engines run no cascade there.
    """
    every_key = shape.causal and not shape.chunk and not shape.compress and min(shape.window, shape.selected) == np.inf
    return every_key and any(present(group.common_tokens) for group in shape.groups)


def cascade(shape: AttentionShape, inputs: AttentionInputs, kernel: Kernel) -> tuple[Operator, ...]:
    """The kernel over the common keys, the one over the others, and the one that merges their partial results.

    The first has the queries of all sequences as one sequence of B n tokens, which sees P keys: they are read once
    instead of B times.  A pass without a common prefix, or of one sequence, runs the second kernel alone.
    Additional traffic: 2 (d_v + 2) x 4 bytes per query head and token, written and read.
    Source: https://flashinfer.ai/2024/02/02/cascade-inference.html
    """
    runs = [np.where((g.common_tokens > 0.0) & (g.batch_size > 1.0), 1.0, 0.0) for g in shape.groups]
    pairs = list(zip(shape.groups, runs, strict=True))
    before = replace(shape, groups=tuple(_common(*pair) for pair in pairs), causal=False)
    after = replace(shape, groups=tuple(_own(*pair) for pair in pairs))
    tokens: Count = total(group.tokens * run for group, run in pairs)
    partial_results = tokens * (PARTS * shape.heads)
    partials = Tensor(
        name="attention_partials",
        elements=partial_results * (shape.v_dim + PARTIAL_STATISTICS),
        dtype=DTYPES["fp32"],
    )
    somewhere = np.where(tokens > 0.0, 1.0, 0.0)
    alone = tokens / shape.queries()  # share of the queries that see a common prefix
    first = kernel(before, _over(shape, before, replace(inputs, extra=())))
    second = kernel(after, _over(shape, after, inputs))
    half = Access(partials, partials.elements / PARTS)
    out = Access(second.output, second.output.elements * (1.0 - alone))
    prefix = replace(
        first, name=PREFIX_KERNEL, where=somewhere, writes=(half,),
        reads=(Access(inputs.q, inputs.q.elements * alone), *first.reads[1:]),
    )  # fmt: skip
    merged = combine(second, partials, partial_results, somewhere)
    merged = replace(merged, writes=(Access(second.output, second.output.elements * alone),), reads=(whole(partials),))
    return prefix, replace(second, writes=(out, half)), merged


def _common(group: Group, runs: Count) -> Group:
    """All queries of a group as one sequence over the keys in common."""
    queries = np.maximum(group.tokens, 1.0)
    keys = group.common_tokens * runs
    return replace(
        group, batch_size=runs, new_tokens=queries, cached_tokens=keys - queries, attended_new_pairs=None,
        common_tokens=0.0,
    )  # fmt: skip


def _own(group: Group, runs: Count) -> Group:
    """A group over the keys of each sequence alone."""
    return replace(group, cached_tokens=group.cached_tokens - group.common_tokens * runs, common_tokens=0.0)


def _over(shape: AttentionShape, part: AttentionShape, inputs: AttentionInputs) -> AttentionInputs:
    """The inputs with the keys and values of a part of the shape."""
    share = part.keys() / shape.keys()

    def scaled(accesses: tuple[Access, ...]) -> tuple[Access, ...]:
        return tuple(Access(access.tensor, access.elements * share) for access in accesses)

    return replace(inputs, k=scaled(inputs.k), v=scaled(inputs.v))


#: Keys of a block; a split has at least one block (FlashAttention's kBlockN for head_dim 128).
KEYS_PER_BLOCK = 128.0
#: Share of busy units from which nothing is split.  This and the next: num_splits_heuristic in
#: https://github.com/Dao-AILab/flash-attention/blob/main/csrc/flash_attn/flash_api.cpp
ENOUGH_BUSY_UNITS = 0.8
MAX_SPLITS = 128.0
#: Numbers of a partial result in addition to its d_v sums: a maximum and a sum of exponentials, all fp32.
PARTIAL_STATISTICS = 2.0


@frozen
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


def flash_attention(chip: Chip) -> Pass:
    """Fuse qk_matmul, softmax and sv_matmul into `attention` in every block that has them.

    FLOPs drop to the attended pairs, scores are not moved, Q is read and O written once, K and V once from device
    memory.  Every row block of queries reads K and V again.  Concurrent blocks (one per unit) read them together, so a
    wave costs one read of device memory and the L2 serves the rest; further waves of the same head hit the L2 if the
    keys and values of a wave fit into it, and read device memory otherwise.  An indexer scores attended pairs only.  If
    units, L2 or row blocks of the chip are
    unknown, K and V are read once.  Sources: arXiv 2205.14135, 2307.08691.
    """

    def change(block: Block) -> Block:
        roles = [op.role for op in block.operators]
        if OperatorRole.SCORES not in roles:
            return block
        at = roles.index(OperatorRole.SCORES)
        qk, softmax, sv = block.operators[at : at + 3]
        shape = qk.shape
        assert isinstance(shape, AttentionShape)
        inputs = AttentionInputs.from_eager((qk, softmax, sv))
        fused = _kernels(shape, inputs, chip, qk.compute)
        before = tuple(_unmasked(op) if op.role is OperatorRole.INDEX_SCORES else op for op in block.operators[:at])
        after = tuple(_reading_fused(op) for op in block.operators[at + 3 :])
        return replace(block, operators=(*before, *fused, *after))

    return lambda graph: graph.map_blocks(change)


def _kernels(shape: AttentionShape, inputs: AttentionInputs, chip: Chip, compute: str) -> tuple[Operator, ...]:
    """The flash kernel, or a cascade of two if sequences have a cached prefix in common."""

    def kernel(own: AttentionShape, of: AttentionInputs) -> Operator:
        return flash(own, of, rereads(own, of, chip), compute)

    return cascade(shape, inputs, kernel) if has_common_keys(shape) else (kernel(shape, inputs),)


def _unmasked(operator: Operator) -> Operator:
    """The scores of an indexer for the pairs only that the causal mask lets through."""
    share = 1.0 - operator.masked_flops / np.maximum(operator.matmul_flops, 1.0)
    writes = tuple(Access(access.tensor, access.elements * share) for access in operator.writes)
    attended = operator.matmul_flops - operator.masked_flops
    scaled = operator.map_work(lambda count: count * share)
    return replace(scaled, writes=writes, matmul_flops=attended, masked_flops=0.0)


def _reading_fused(operator: Operator) -> Operator:
    """The operator with tensors derived from sv_matmul renamed to those of `attention`."""
    if not any(a.tensor.name.startswith("sv_matmul") for a in (*operator.reads, *operator.writes)):
        return operator
    reads, writes = (tuple(map(_renamed, accesses)) for accesses in (operator.reads, operator.writes))
    return operator.having(name=_fused_name(operator.name), reads=reads, writes=writes)


def _renamed(access: Access) -> Access:
    name = access.tensor.name
    return Access(access.tensor.called(_fused_name(name)), access.elements) if name.startswith("sv_matmul") else access


def _fused_name(name: str) -> str:
    """Rename `sv_matmul_quantize` to `attention_quantize`; other names are unchanged."""
    return f"attention{name.removeprefix('sv_matmul')}" if name.startswith("sv_matmul") else name


def rereads(shape: AttentionShape, inputs: AttentionInputs, chip: Chip) -> tuple[Access, ...]:
    """Reads of K and V by row blocks after the first: from the L2, and for later waves from device memory."""
    if chip.units is None or chip.l2_bytes is None or chip.generation not in ROW_BLOCKS:
        return ()
    cached = inputs.cached()
    stored = sum(a.tensor.dtype.bytes * a.elements for a in cached)
    keys = np.maximum(shape.keys(), 1.0)  # passes without any are possible
    per_key = stored / (keys * shape.kv_heads)  # bytes of K and V of one key and one KV head
    again_l2: Count = 0.0
    again_device: Count = 0.0
    for group in shape.groups:
        l2, device = _read_counts(group, shape, chip, per_key)
        group_share = group.batch_size * shape.keys_of(group) / keys
        again_l2 = again_l2 + group_share * l2
        again_device = again_device + group_share * device
    return tuple(
        Access(a.tensor.at(place), a.elements * times)
        for place, times in ((Place.L2, again_l2), (Place.DEVICE, again_device))
        for a in cached
    )


def _read_counts(group: Group, shape: AttentionShape, chip: Chip, per_key: Count) -> tuple[Count, Count]:
    """Reads of the keys and values of one head and sequence after the first: from the L2, and from device memory.

    A block or a wave of blocks reads the keys that its queries attend to, on average the attended share.  The keys of a
    wave are all keys, or with a window those in the windows of its queries.
    """
    assert chip.units is not None and chip.l2_bytes is not None
    # grouped queries of one KV head are packed into the same rows (FlashAttention's decode kernels do; prefill
    # kernels run one query head per block, which read the same K and V)
    rows_per_token = shape.heads / shape.kv_heads
    rows = block_rows(shape.qk_dim, chip.generation)
    blocks = np.ceil(group.new_tokens * rows_per_token / rows)
    keys = shape.keys_of(group)
    share = shape.pairs_of(group) / np.maximum(group.new_tokens * keys, 1.0)
    swept = keys if shape.window == np.inf else np.minimum(keys, shape.window + chip.units * rows / rows_per_token)
    waves = np.where(swept * per_key <= chip.l2_bytes, 1.0, np.ceil(blocks / chip.units))
    reads, device = (np.maximum(count * share, 1.0) for count in (blocks, waves))
    return reads - device, device - 1.0


#: The kernel of the first paper.
FIRST = "flash-1"
#: Kernels that split keys -> how they merge partial results.
MERGES = {"flash-decoding": RESCALED, "flash-decoding++": UNIFIED}
#: Number of splits in `flash-decoding=8`.
SPLITS = Whole("splits of the keys", 1, 128)


def _on_the_data_sheet(system: System) -> System:
    if system.efficiency is not ideal:
        raise UserError(f"--attention {FIRST}: engines run later kernels, which are those measured; --efficiency ideal")
    return system


def _make(text: str) -> Change:
    name, equals, splits = text.partition("=")
    flash_kernel = add_pass("flash_attention", flash_attention)
    if text == "flash":
        return flash_kernel
    if text == FIRST:
        first = add_pass(FIRST, flash_first)
        return lambda system: first(_on_the_data_sheet(flash_kernel(system)))
    if name not in MERGES:
        raise unknown("attention", text, ("flash", FIRST, "eager", *MERGES, *(f"{one}=SPLITS" for one in MERGES)))
    with refusing(f"--attention {name}"):
        count = SPLITS.read("splits", splits) if equals else None
    split = add_pass(text, lambda chip: flash_decoding(chip, count, MERGES[name]))
    return lambda system: split(flash_kernel(system))


TECHNIQUE = Technique(
    name="attention",
    kind="attention",
    summary="Keeps the scores on the chip and computes only pairs that the mask allows; the default.",
    parameters={
        "flash": "FlashAttention-2 and later: K and V are read again by row blocks, from the L2 where they fit",
        "flash-1": "the first FlashAttention: Q, O and statistics move once per block of keys (data-sheet times only)",
        "flash-decoding": "keys are split over idle units, flash-decoding=8 over as many",
        "flash-decoding++": "the same with one maximum chosen in advance, so that partial results are added unscaled",
        "eager": "three kernels that move the scores",
    },
    formula="2 heads pairs (d_qk + d_v) over attended pairs n c + n(n+1)/2; traffic Q + K + V + O; "
    "flash-1 adds blocks x (3 n d + 4 n) per head, blocks = keys x 4 d / on-chip numbers; "
    "flash-decoding writes and reads splits (d_v + 2) fp32 per query head besides",
    source="FlashAttention arXiv 2205.14135, FlashAttention-2 arXiv 2307.08691, "
    "Flash-Decoding https://crfm.stanford.edu/2023/10/12/flashdecoding.html",
    example="llmviewer analyze llama-2-7b --hardware a6000 --attention flash",
    make=_make,
)
