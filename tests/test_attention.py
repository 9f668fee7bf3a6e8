"""Attention: eager kernels move the full score matrix, the flash kernel none; grouped heads, windows, chunks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.core.dtypes import DTYPES
from llmviewer.core.ir import Block, Graph, Operator, Place, Role, Tensor, check
from llmviewer.core.workload import Step, chunk, decode, mixed, prefill, verify
from llmviewer.hardware import specs
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.techniques.kernels.flash_attention import block_rows, flash_attention
from llmviewer.timing import roofline
from llmviewer.timing.roofline import ideal

FP16 = DTYPES["fp16"]
#: One layer of Llama-2-7b and of Llama-2-70b.
MHA = Attention(hidden=4096, heads=32, kv_heads=32, head_dim=128, rotary_dim=128, dtype=FP16)
GQA = Attention(hidden=8192, heads=64, kv_heads=8, head_dim=128, rotary_dim=128, dtype=FP16)


def block(attention: Attention, step: Step) -> Block:
    hidden = Tensor(name="hidden", elements=step.tokens * (1.0 * attention.hidden), dtype=FP16)
    return Block(name="layer", operators=attention.operators(step, hidden))


def eager(attention: Attention, step: Step) -> dict[str, Operator]:
    return {op.name: op for op in block(attention, step).operators}


def flash(attention: Attention, step: Step, chip: str = "a100") -> Operator:
    graph = flash_attention(specs.load(chip))(Graph(blocks=(block(attention, step),)))
    check(graph)
    return next(op for _, op in graph if op.name == "attention")


def test_eager_prefill_by_hand() -> None:
    """32 heads, 2048 x 2048 scores of 128 multiply-adds: 34.4 GFLOP; Q 16.8 MB, K 16.8 MB, scores 268.4 MB."""
    ops = eager(MHA, prefill(1.0, 2048.0))
    scores = 32 * 2048 * 2048
    assert ops["qk_matmul"].matmul_flops == ops["sv_matmul"].matmul_flops == 2 * scores * 128
    assert ops["qk_matmul"].traffic_bytes == 2 * (2048 * 4096 + 2048 * 4096 + scores)
    assert ops["softmax"].traffic_bytes == 2 * 2 * scores
    assert ops["softmax"].vector_flops == 5 * scores
    assert ops["softmax"].special_ops == scores
    assert ops["sv_matmul"].traffic_bytes == 2 * (scores + 2048 * 4096 + 2048 * 4096)


def test_eager_decode_by_hand() -> None:
    """One query over 2048 keys (2047 cached): 16.8 MFLOP each, K and V 16.8 MB each."""
    ops = eager(MHA, decode(1.0, 2047.0))
    assert ops["qk_matmul"].matmul_flops == ops["sv_matmul"].matmul_flops == 2 * 32 * 2048 * 128
    assert ops["qk_matmul"].read_bytes(Role.CACHE) == ops["sv_matmul"].read_bytes(Role.CACHE) == 2 * 2048 * 4096


def test_flash_prefill_by_hand() -> None:
    """2048 x 2049 / 2 pairs, 4 x 4096 FLOP each: 34.4 GFLOP; Q, K, V and O of 16.8 MB: 67.1 MB."""
    op = flash(MHA, prefill(1.0, 2048.0))
    assert op.matmul_flops == 4 * 4096 * (2048 * 2049 // 2)
    assert op.traffic_bytes == 4 * 2 * 2048 * 4096
    assert op.vector_flops == 5 * 32 * (2048 * 2049 // 2)


def test_grouped_query_attention_reads_kv_heads_only() -> None:
    """Llama-2-70b at 2048 keys: 8 KV heads x 128 x 2 bytes x 2 (K and V) = 8.39 MB, not 67.1 MB of 64 heads."""
    assert flash(GQA, decode(1.0, 2047.0)).read_bytes(Role.CACHE) == 2 * 2 * 2048 * 8 * 128
    ops = eager(GQA, decode(1.0, 2047.0))
    assert ops["qk_matmul"].read_bytes(Role.CACHE) == 2 * 2048 * 8 * 128
    assert ops["qk_matmul"].read_bytes(Role.ACTIVATION) == 2 * 64 * 128


def test_grouped_query_attention_changes_no_flops() -> None:
    mha = replace(GQA, kv_heads=64)
    for step in (prefill(2.0, 300.0), decode(5.0, 1000.0)):
        assert flash(GQA, step).matmul_flops == flash(mha, step).matmul_flops


def test_decode_attention_has_two_flops_per_query_head_and_kv_byte_pair() -> None:
    """Intensity = 4 h d / (4 h_kv d) = h / h_kv FLOP per byte at 16 bit, for any batch size and context."""
    for batch, context in ((1.0, 1000.0), (64.0, 30000.0)):
        op = flash(GQA, decode(batch, context))
        assert op.matmul_flops / op.read_bytes(Role.CACHE) == 64 / 8


def test_a_window_limits_cache_reads_and_flops_of_decode() -> None:
    sliding = replace(MHA, window=512.0)
    op = flash(sliding, decode(1.0, 10000.0))
    assert op.read_bytes(Role.CACHE) == 2 * 2 * 512 * 4096
    assert op.matmul_flops == 4 * 4096 * 512
    assert sliding.states()[0].resident_bytes(10000.0) == 2 * 512 * 4096


def test_chunked_attention_limits_the_pairs_of_prefill() -> None:
    """4 chunks of 256: 4 x 256 x 257 / 2 pairs; the whole prompt would have 1024 x 1025 / 2."""
    op = flash(replace(MHA, chunk=256), prefill(1.0, 1024.0))
    assert op.matmul_flops == 4 * 4096 * (4 * 256 * 257 // 2)


def test_flash_computes_one_exponential_per_attended_pair_and_query_head() -> None:
    """64 query heads over 8 KV heads, 2048 x 2049 / 2 pairs each; 5 vector FLOP per pair include the exponential."""
    op = flash(GQA, prefill(1.0, 2048.0))
    assert op.special_ops == 64 * (2048 * 2049 // 2)
    assert op.vector_flops == 5 * op.special_ops


def test_a_soft_cap_costs_three_flops_and_an_exponential_per_score() -> None:
    plain, capped = (eager(a, decode(1.0, 99.0))["softmax"] for a in (MHA, replace(MHA, soft_cap=True)))
    assert capped.vector_flops - plain.vector_flops == 3 * 32 * 100
    assert capped.special_ops == 2 * plain.special_ops


def test_sinks_and_qk_norms_are_weights_that_are_read() -> None:
    ops = eager(replace(MHA, sinks=True, qk_norm=QkNorm.PER_HEAD), decode(1.0, 99.0))
    assert ops["softmax"].read_bytes(Role.WEIGHT) == 2 * 32
    assert ops["q_norm"].read_bytes(Role.WEIGHT) == ops["k_norm"].read_bytes(Role.WEIGHT) == 2 * 128


def test_partial_rope_rotates_fewer_pairs() -> None:
    full, half = (eager(a, decode(1.0, 99.0))["rope"].flops for a in (MHA, replace(MHA, rotary_dim=64)))
    assert full == 6 * (32 + 32) * 64
    assert half == full / 2


def test_without_rope_k_proj_writes_the_cache() -> None:
    ops = eager(replace(MHA, rotary_dim=0), decode(1.0, 99.0))
    assert "rope" not in ops
    assert ops["k_proj"].write_bytes(Role.CACHE) == ops["v_proj"].write_bytes(Role.CACHE) == 2 * 4096


sizes = st.tuples(st.integers(1, 64), st.integers(1, 2000), st.integers(0, 4000))


@given(sizes)
def test_flash_keeps_the_attended_share_of_eager_matmul_flops(size: tuple[int, int, int]) -> None:
    batch, new, cached = map(float, size)
    step = chunk(batch, new, cached)
    ops = eager(GQA, step)
    kept = sum(ops[name].matmul_flops - ops[name].masked_flops for name in ("qk_matmul", "sv_matmul"))
    assert flash(GQA, step).matmul_flops == kept


@given(
    batch=st.integers(1, 16),
    new=st.integers(1, 8192),
    cached=st.integers(0, 8192),
    grouped=st.booleans(),
    chip=st.sampled_from(["a6000", "h100-sxm", "a100", "mi300x", "gaudi-3"]),
)
def test_flash_never_moves_more_than_eager(batch: int, new: int, cached: int, grouped: bool, chip: str) -> None:  # noqa: FBT001
    attention = GQA if grouped else MHA
    step = chunk(float(batch), float(new), float(cached))
    ops = eager(attention, step)
    moved = sum(ops[name].traffic_bytes for name in ("qk_matmul", "softmax", "sv_matmul"))
    assert flash(attention, step, chip).traffic_bytes <= moved


@given(first=sizes, second=sizes)
def test_attention_of_a_mixed_step_is_the_sum_of_its_groups(
    first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    steps = [chunk(*map(float, size)) for size in (first, second)]
    for name in ("qk_matmul", "softmax", "sv_matmul"):
        together = eager(GQA, mixed(*steps))[name]
        single = [eager(GQA, step)[name] for step in steps]
        assert together.flops == sum(op.flops for op in single)
        assert together.masked_flops == sum(op.masked_flops for op in single)
        assert together.traffic_bytes == sum(op.traffic_bytes for op in single)
    assert flash(GQA, mixed(*steps)).matmul_flops == sum(flash(GQA, step).matmul_flops for step in steps)


def test_a_sarathi_batch_reads_projection_weights_once() -> None:
    parts = (chunk(1.0, 256.0, 0.0), decode(31.0, 1000.0))
    together = eager(MHA, mixed(*parts))["q_proj"]
    assert together.matmul_flops == sum(eager(MHA, part)["q_proj"].matmul_flops for part in parts)
    assert together.read_bytes(Role.WEIGHT) == 2 * 4096 * 4096


def test_verification_of_draft_tokens_is_a_short_prefill_on_a_cache() -> None:
    """3 drafts and the last token over 100 cached: 4 x 100 + 4 x 5 / 2 = 410 pairs; weights read once for 4 tokens."""
    step = verify(1.0, 100.0, draft_tokens=3.0)
    assert flash(MHA, step).matmul_flops == 4 * 4096 * 410
    assert eager(MHA, step)["q_proj"].read_bytes(Role.WEIGHT) == 2 * 4096 * 4096


def test_flash_reads_only_the_chunks_of_the_new_tokens() -> None:
    """Chunks of 8192 after 9000 tokens: the next one sees keys 8192 ... 9000, 809 of them; 300 more up to 9299, 1108.
    The first token of a chunk attends only to itself.  Eager kernels multiply the whole cache of a chunk."""
    chunked = replace(MHA, chunk=8192)
    for step, keys in (
        (decode(1.0, 9000.0), 809),
        (chunk(1.0, 300.0, 9000.0), 1108),
        (decode(1.0, 8192.0), 1),
        (decode(1.0, 100.0), 101),
    ):
        assert flash(chunked, step, "h200").read_bytes(Role.CACHE) == 2 * 2 * keys * 4096
    assert eager(chunked, decode(1.0, 9000.0))["qk_matmul"].read_bytes(Role.CACHE) == 2 * 8192 * 4096


def test_row_blocks_reread_keys_and_values_from_the_l2() -> None:
    """H100, heads of 128: blocks of 128 query rows. 2048 queries are 16 blocks; a causal block reads half of the keys
    on average, (2048 x 2049 / 2) / 2048^2: 16 x 0.50024 - 1 = 7.0039 further reads of K and V, 33.6 MB each."""
    op = flash(MHA, prefill(1.0, 2048.0), "h100-sxm")
    again = 16 * (2048 * 2049 / 2) / 2048**2 - 1
    assert op.moved_bytes(Place.L2) == pytest.approx(again * 2 * 2 * 2048 * 4096)
    assert op.traffic_bytes == 4 * 2 * 2048 * 4096, "device memory is read once"


@pytest.mark.parametrize(
    ("generation", "head_dim", "rows"),
    [
        ("ampere", 64, 128),
        ("ampere", 256, 128),
        ("ada", 128, 128),
        ("hopper", 64, 192),
        ("hopper", 96, 192),
        ("hopper", 128, 128),
        ("hopper", 256, 128),
        ("blackwell", 128, 256),
        ("cdna3", 128, 128),
    ],
)
def test_row_blocks_are_those_of_the_published_kernels(generation: str, head_dim: int, rows: int) -> None:
    """FlashAttention's tile_size.h and flash_fwd_sm100.py; the composable kernels' ck_tiled_fmha_fwd_setting.h."""
    assert block_rows(float(head_dim), generation) == rows


def test_decode_rereads_nothing() -> None:
    op = flash(GQA, decode(64.0, 8191.0), "h100-sxm")
    assert op.moved_bytes(Place.L2) == 0


def test_a_cache_larger_than_the_l2_is_reread_from_device_memory_in_waves() -> None:
    """A6000, 6 MiB of L2: 8 query heads share 65,536 keys of one KV head, 33.6 MB; their rows are 4096 blocks of 128,
    49 waves of 84.  A causal wave reads half of the keys on average: 49 x 0.500008 reads, 23.5 more than the first."""
    op = flash(GQA, prefill(1.0, 65536.0), "a6000")
    once, again = 2 * 65536 * (8192 + 1024 + 1024 + 8192), 49 * (65537 / 65536) / 2 - 1
    assert op.traffic_bytes - once == pytest.approx(again * 2 * 2 * 65536 * 1024)


def test_a_window_that_fits_the_l2_is_not_reread_from_device_memory() -> None:
    """A6000, window 1024: a wave of 84 blocks of 128 rows (16 tokens x 8 heads) sweeps 1024 + 1344 keys, 1.2 MB."""
    op = flash(replace(GQA, window=1024.0), prefill(1.0, 131072.0), "a6000")
    assert op.traffic_bytes == 2 * 131072 * (8192 + 1024 + 1024 + 8192)


CACHES_AND_UNITS = [n for n in specs.names() if specs.load(n).l2_bytes and specs.load(n).units]


@pytest.mark.parametrize("name", CACHES_AND_UNITS)
@pytest.mark.parametrize("attention", [MHA, GQA, replace(GQA, heads=16, head_dim=256)], ids=["mha", "gqa", "wide"])
def test_rereads_by_further_row_blocks_are_never_the_bound(name: str, attention: Attention) -> None:
    """A block of 128 rows does at least 128 FLOP per byte that it rereads, so rereads are never the bound."""
    chip = specs.load(name)
    tokens = np.exp2(np.arange(7.0, 21.0, dtype=np.float64))
    steps = ((tokens, 0.0 * tokens), (1.0 + 0.0 * tokens, tokens), (2048.0 + 0.0 * tokens, tokens))
    for window, (new, cached) in product((float("inf"), 1024.0, 4096.0), steps):
        op = flash(replace(attention, window=window), chunk(1.0, new, cached), name)
        reads = [a for a in op.reads if a.tensor.place is Place.DEVICE]
        once = replace(op, reads=tuple({a.tensor.name: a for a in reversed(reads)}.values()))
        slow, fast = (roofline.time_operator(o, chip, ideal, o.traffic_bytes).time_s for o in (op, once))
        assert slow == pytest.approx(fast)


@pytest.mark.parametrize("chip", ["h100-nvl", "tpu-v4", "gaudi-3"])
def test_a_chip_without_a_published_l2_or_row_blocks_reads_once(chip: str) -> None:
    op = flash(GQA, prefill(1.0, 65536.0), chip)
    assert op.moved_bytes(Place.L2) == 0
    assert op.traffic_bytes == 2 * 65536 * (8192 + 1024 + 1024 + 8192)
