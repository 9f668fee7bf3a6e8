"""Attention kernels: tiles and tasks over units, calculated by hand; never faster than the data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from llmviewer.core import dtypes
from llmviewer.core.counts import Array
from llmviewer.core.ir import Operator, Place, Role, Tensor, whole
from llmviewer.core.workload import Group, chunk, decode, mixed, prefill
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import AttentionInputs, AttentionShape, eager, flash
from llmviewer.techniques.kernels.flash_attention import rereads
from llmviewer.timing import roofline
from llmviewer.timing.calibrated import calibrated
from llmviewer.timing.kernels import attention, attention_decode, attention_prefill, power
from llmviewer.timing.kernels.families import FAMILIES, families_of
from llmviewer.timing.lending import adapt_constants
from llmviewer.timing.roofline import Rates, ideal

H100 = specs.load("h100-sxm")
#: A chip with round figures: 100 units, 1 PFLOP/s, 1 TB/s, no rate of exponentials.
ROUND = replace(
    H100, units=100.0, matrix_flops_per_s={"bf16": 1e15}, bandwidth_bytes_per_s=1e12, special_ops_per_s=None
)
PREFILL, DECODE = attention_prefill.FAMILY, attention_decode.FAMILY
#: Only tiles or tasks: all other costs zero, all shares 1.
NO_COST = dict.fromkeys(("floor", "tile", "token", "cache", "uneven", "window", "skipped", "split"), 0.0)
PLAIN = PREFILL.start_values() | NO_COST | {"compute": 1.0, "memory": 1.0, "sharpness": 1.0, "rows": 128.0}
NO_TASK = dict.fromkeys(("floor", "width", "uneven", "sequence", "task", "output", "key", "key_width", "window"), 0.0)
BARE = DECODE.start_values() | NO_TASK | {"memory": 1.0, "sharpness": 1.0, "split": 0.0}


def kernel(
    groups: tuple[Group, ...], chip: Chip, heads: float = 32.0, kv_heads: float = 8.0, window: float = np.inf,
    dims: tuple[float, float] = (128.0, 128.0),
) -> Operator:  # fmt: skip
    shape = AttentionShape(groups=groups, heads=heads, kv_heads=kv_heads, qk_dim=dims[0], v_dim=dims[1], window=window)
    bf16 = dtypes.get_dtype("bf16")
    q = Tensor(name="q", elements=shape.queries() * heads * dims[0], dtype=bf16)
    k, v = (
        Tensor(name=name, elements=shape.keys() * kv_heads * dim, dtype=bf16, role=Role.CACHE)
        for name, dim in zip(("k_cache", "v_cache"), dims, strict=True)
    )
    inputs = AttentionInputs(q=q, k=(whole(k),), v=(whole(v),))
    return flash(shape, inputs, rereads(shape, inputs, chip), "bf16")


def seconds(operator: Operator, chip: Chip, family: object, constants: Mapping[str, float]) -> Array:
    def efficiency(op: Operator, chip: Chip) -> Rates:
        return family.rates(op, chip, constants)  # type: ignore[attr-defined,no-any-return]

    return np.asarray(roofline.time_operator(operator, chip, efficiency, operator.traffic_bytes).time_s)


def part_of(operator: Operator, chip: Chip, constants: Mapping[str, float]) -> attention.GroupTime:
    shape = operator.shape
    assert isinstance(shape, AttentionShape)
    module = attention_prefill if "tile" in constants else attention_decode
    return module.group_time(shape.groups[0], operator, chip, constants)


def test_prefill_time_is_tiles_over_units_plus_the_longest_tile() -> None:
    # 16 heads x 1024 / 128 = 128 tiles; a query sees 512.5 keys on average, a tile 64 more for its diagonal and 64 for
    # the last block: 640.5.  128 rows x 2 (128 + 128) FLOP / 10 TFLOP/s of a unit = 6.5536 ns a key.
    op = kernel(prefill(1.0, 1024.0).groups, ROUND, heads=16.0, kv_heads=16.0)
    key = 6.5536e-9
    expected = 128 * 640.5 * key / 100 + (1024 + 64) * key
    assert part_of(op, ROUND, PLAIN).tiles_s == pytest.approx(expected)


def test_heads_that_share_keys_fill_one_tile_with_few_queries() -> None:
    # 16 queries x 8 heads of a group are 128 rows: one tile for each of 4 KV heads, not one for each of 32 heads
    op = kernel(prefill(1.0, 16.0).groups, ROUND, heads=32.0, kv_heads=4.0)
    packed = part_of(op, replace(ROUND, generation="ampere"), PLAIN | {"rows": 0.0, "tile": 1.0, "compute": 1.0})
    single = part_of(op, ROUND, PLAIN | {"tile": 1.0})
    key = 6.5536e-9
    each = max(8.5 + 8 + 64, 128)  # keys seen on average, half the diagonal, half a block; at least one block
    # 4 tiles on 100 units split their keys: the longest takes its own microsecond plus 1.15 of the mean share
    all_tiles = 4 * (1e-6 + each * key) / 100
    longest = min(1e-6 + each * key, 1e-6 + 1.15 * all_tiles)
    assert packed.tiles_s == pytest.approx(all_tiles + longest)
    assert single.tiles_s == pytest.approx(32 * (1e-6 + each * key) / 100 + 1e-6 + each * key)


def test_cache_writes_cost_by_the_elements_of_their_keys() -> None:
    op = kernel(prefill(2.0, 1000.0).groups, ROUND, heads=8.0, kv_heads=2.0)
    part = part_of(op, ROUND, PLAIN | {"token": 3.0, "cache": 1.0, "floor": 10.0})
    # 2 heads x 128 elements are half of 512: (3 + 1) / 2 ns for each of 2000 tokens
    assert part.fixed_s == pytest.approx(10e-6 + 2000 * 2e-9)


def test_decode_time_is_tasks_over_units() -> None:
    # 64 sequences x 8 KV heads = 512 tasks of 2 us and 4097 keys x 10 ns
    op = kernel(decode(64.0, 4096.0).groups, ROUND)
    part = part_of(op, ROUND, BARE | {"task": 2.0, "key": 10.0, "splits": 32.0})
    total = 512 * (2e-6**1.5 + (4097 * 10e-9) ** 1.5) ** (1 / 1.5) / 100
    longest = 2e-6 + min(4097 * 10e-9, max(total, 4097 * 10e-9 / 32))
    assert part.tiles_s == pytest.approx(total + longest)


def test_key_splits_of_a_single_sequence_are_limited_by_the_kernel() -> None:
    op = kernel(decode(1.0, 99999.0).groups, ROUND, heads=8.0, kv_heads=1.0)
    part = part_of(op, ROUND, BARE | {"key": 10.0, "splits": 32.0, "split": 3.0})
    assert part.tiles_s == pytest.approx(1e-3 / 100 + 1e-3 / 32 + 3e-6)


def test_tensorrt_llm_runs_48_heads_of_a_group_one_by_one() -> None:
    constants = BARE | {"task": 1.0, "key": 10.0, "head_task": 1.0, "head_key": 10.0, "apart": 1024.0}
    few, many = (
        part_of(kernel(decode(256.0, 1000.0).groups, ROUND, heads=h, kv_heads=1.0), ROUND, constants)
        for h in (32.0, 48.0)
    )
    assert float(many.tiles_s / few.tiles_s) > 10.0
    assert part_of(
        kernel(decode(256.0, 1000.0).groups, ROUND, heads=48.0, kv_heads=1.0), ROUND, constants | {"apart": 0.0}
    ).tiles_s == pytest.approx(float(few.tiles_s))


def test_tensorrt_llm_key_blocks_depend_on_the_length_even_beyond_a_window() -> None:
    # 128 tasks: 2048 keys make 16 blocks, sqrt(8 x 16) is 11, 8 x 100 / 128 is 6: each starts in 2 us
    constants = BARE | {"task": 2.0, "waves": 8.0}
    for window in (np.inf, 128.0):
        op = kernel(decode(16.0, 2047.0).groups, ROUND, window=window)
        assert part_of(op, ROUND, constants).tiles_s == pytest.approx(128 * 6 * 2e-6 / 100 + 2e-6, rel=0.01)
    few = kernel(decode(1.0, 2047.0).groups, ROUND, kv_heads=1.0)
    key = part_of(few, ROUND, constants | {"task": 0.0, "key": 10.0, "split": 3.0})
    assert key.tiles_s == pytest.approx(2048 * 1e-8 / 100 + 2048 * 1e-8 / 11 + 3e-6)


def test_heads_of_64_elements_may_need_an_extra_kernel() -> None:
    constants = BARE | {"floor": 5.0, "narrow": 2.0, "apart": 1.0, "head_floor": 9.0}
    launches = [
        float(part_of(kernel(decode(256.0, 1000.0).groups, ROUND, kv_heads=k, dims=(d, d)), ROUND, constants).fixed_s)
        for k, d in ((8.0, 128.0), (8.0, 64.0), (32.0, 64.0))
    ]
    assert launches == pytest.approx([5e-6, 7e-6, 9e-6])


def test_a_cache_in_the_l2_is_read_faster_than_from_memory() -> None:
    op = kernel(decode(8.0, 4000.0).groups, ROUND)
    warm = replace(op, reads=tuple(replace_place(access) for access in op.reads))
    assert part_of(op, ROUND, BARE).byte_s == pytest.approx(1e-12)
    cold_s, warm_s = (seconds(o, ROUND, DECODE, BARE) for o in (op, warm))
    assert warm_s < cold_s


def replace_place(access: object) -> object:
    tensor = access.tensor  # type: ignore[attr-defined]
    if tensor.role is not Role.CACHE:
        return access
    return replace(access, tensor=tensor.at(Place.L2))  # type: ignore[type-var]


def test_chips_of_few_large_or_many_tiny_units_are_priced_like_common_ones() -> None:
    op = kernel(decode(32.0, 4096.0).groups, ROUND)
    chips = [replace(ROUND, units=units) for units in (2.0, 900_000.0, None, power.A100_UNITS)]
    assert len({float(part_of(op, chip, DECODE.start_values()).tiles_s) for chip in chips}) == 1


LENGTHS = np.array([1.0, 16.0, 17.0, 127.0, 128.0, 129.0, 500.0, 2048.0, 16384.0])


@pytest.mark.parametrize("window", [np.inf, 128.0])
@pytest.mark.parametrize(("heads", "kv_heads"), [(32.0, 32.0), (32.0, 8.0), (64.0, 1.0)])
@pytest.mark.parametrize("dims", [(64.0, 64.0), (128.0, 128.0), (576.0, 512.0)])
def test_no_kernel_is_faster_than_the_data_sheet_bound(
    window: float, heads: float, kv_heads: float, dims: tuple[float, float]
) -> None:
    for family, step in (
        (PREFILL, chunk(4.0, LENGTHS, 100.0)),
        (DECODE, decode(4.0, LENGTHS * 8.0)),
        (DECODE, decode(LENGTHS, 1000.0)),
    ):
        op = kernel(step.groups, H100, heads, kv_heads, window, dims)
        best = np.asarray(roofline.time_operator(op, H100, ideal, op.traffic_bytes).time_s)
        assert (seconds(op, H100, family, family.start_values()) >= best).all()


@pytest.mark.parametrize("window", [np.inf, 1024.0])
@pytest.mark.parametrize("cached", [0.0, 1000.0])
def test_time_never_falls_with_tokens_keys_or_sequences(window: float, cached: float) -> None:
    n = np.arange(32.0, 4096.0, 32.0)
    prompts = kernel(chunk(16.0, n, cached).groups, H100, window=window)
    steps = kernel(decode(16.0, n + cached).groups, H100, window=window)
    batches = kernel(decode(n, 2000.0).groups, H100, window=window)
    for family, op in ((PREFILL, prompts), (DECODE, steps), (DECODE, batches)):
        time = seconds(op, H100, family, family.start_values())
        assert (np.diff(time) >= -1e-3 * time[1:]).all(), family.name


def test_a_mixed_step_takes_the_time_of_both_kernels() -> None:
    source = calibrated(H100)
    chunk_step, decode_step = chunk(1.0, 512.0, 1000.0), decode(31.0, 2000.0)
    together = kernel(mixed(chunk_step, decode_step).groups, H100)
    parts = [kernel(step.groups, H100) for step in (chunk_step, decode_step)]
    each = [float(roofline.time_operator(op, H100, source, op.traffic_bytes).time_s) for op in parts]
    both = roofline.time_operator(together, H100, source, together.traffic_bytes)
    assert float(both.time_s) == pytest.approx(sum(each), rel=0.02)


def test_single_group_passes_use_the_kernel_of_their_number_of_queries() -> None:
    source = calibrated(H100)
    group = Group(
        batch_size=np.array([2.0, 64.0]), new_tokens=np.array([2048.0, 1.0]),
        cached_tokens=np.array([0.0, 2048.0]), logit_positions=1.0,
    )  # fmt: skip
    op = kernel((group,), H100)
    single = [kernel(step.groups, H100) for step in (prefill(2.0, 2048.0), decode(64.0, 2048.0))]
    expected = [float(roofline.time_operator(o, H100, source, o.traffic_bytes).time_s) for o in single]
    assert np.asarray(roofline.time_operator(op, H100, source, op.traffic_bytes).time_s) == pytest.approx(expected)


def test_eager_attention_products_are_unmeasured_batched_gemms() -> None:
    op = kernel(prefill(1.0, 512.0).groups, H100)
    shape = op.shape
    assert isinstance(shape, AttentionShape)
    q, k, v = (access for access in op.reads if access.tensor.place is Place.DEVICE and np.all(access.elements > 0.0))
    scores, _, out = eager(shape, AttentionInputs(q=q.tensor, k=(k,), v=(v,)))
    assert [families_of(o) for o in (scores, op)] == [("batched",), ("attention_prefill", "attention_decode")]
    source = calibrated(H100)
    for each in (scores, out):
        timing = roofline.time_operator(each, H100, source, each.traffic_bytes)
        assert source.interval(each, H100, timing).shape == (4, 1)  # of a fit without a range
        best = roofline.time_operator(each, H100, ideal, each.traffic_bytes).time_s
        assert best < roofline.time_operator(each, H100, source, each.traffic_bytes).time_s < best * 3.0 + 10e-6
    assert source.primary_fit(scores).basis == "assumed"


def test_hopper_constants_are_adjusted_for_other_generations() -> None:
    base = PREFILL.start_values()
    volta = adapt_constants(base, "attention_prefill", "h100-sxm", "volta")
    assert volta["compute"] == pytest.approx(0.75 * base["compute"]) and volta["floor"] == base["floor"]
    assert adapt_constants(base, "attention_prefill", "h100-sxm", "hopper") is base
    assert adapt_constants(base, "attention_prefill", "h100-sxm", "blackwell") is base
    assert adapt_constants(base, "attention_prefill", "a100-80gb-sxm", "volta") is base


def test_every_constant_is_within_bounds_and_documented() -> None:
    for family in FAMILIES.values():
        for constant in family.constants:
            assert constant.low <= constant.start <= constant.high and constant.meaning and constant.unit, constant


#: ROUND with an L2 of 100 MB in one piece: data are held up to its size, and from 1.2 times that nothing is.
LARGE_L2 = replace(ROUND, generation="ada", l2_bytes=100e6, clock_hz=2e9, vector_clock_hz=None)


def test_a_large_l2_holds_all_up_to_its_size_and_two_partitions_half_of_it() -> None:
    halves = replace(LARGE_L2, generation="hopper")
    assert [float(power.held_share(size, LARGE_L2)) for size in (100e6, 110e6, 120e6)] == pytest.approx([1.0, 0.5, 0.0])
    assert [float(power.held_share(size, halves)) for size in (50e6, 75e6, 100e6)] == pytest.approx([1.0, 0.5, 0.0])
    assert float(power.rate(LARGE_L2)) == pytest.approx(100 * 2e9 * 16)  # 3.2 TB/s, more than 1.5 x 1 TB/s


def test_a_short_prompt_moves_its_tensors_at_the_rate_of_a_large_l2() -> None:
    short, long = (kernel(prefill(1.0, tokens).groups, LARGE_L2) for tokens in (512.0, 32768.0))
    # 512 tokens x (2 x 32 + 2 x 8 heads) x 128 x 2 bytes = 10.5 MB, with the copies in the cache 15.7 of 100 MB
    assert part_of(short, LARGE_L2, PLAIN).byte_s == pytest.approx(1 / 3.2e12)
    assert part_of(long, LARGE_L2, PLAIN).byte_s == pytest.approx(1e-12)


def test_flash_attention_2_runs_windows_head_by_head_without_splits() -> None:
    constants = BARE | {"key": 10.0, "kernel": attention_decode.FLASH_2, "splits": 32.0}
    grouped, windowed = (
        part_of(kernel(decode(1.0, 9999.0).groups, ROUND, heads=8.0, kv_heads=2.0, window=w), ROUND, constants)
        for w in (np.inf, 5000.0)
    )
    # two tasks share 10000 keys x 10 ns over 100 units, split into 32 blocks
    assert grouped.tiles_s == pytest.approx(2 * 1e-4 / 100 + max(2 * 1e-4 / 100, 1e-4 / 32))
    # eight heads of 5000 keys each, one after another from its first key to its last
    assert windowed.tiles_s == pytest.approx(8 * 5e-5 / 100 + 5e-5)


def test_triton_reads_the_keys_again_for_every_16_heads() -> None:
    op = kernel(decode(64.0, 99999.0).groups, ROUND, heads=64.0, kv_heads=1.0)
    once, four = (part_of(op, ROUND, BARE | {"kernel": value}) for value in (0.0, attention_decode.TRITON))
    assert float(four.byte_s / once.byte_s) == pytest.approx(4.0)


def test_a_task_alone_on_its_unit_takes_longer_than_its_share_of_a_full_one() -> None:
    op = kernel(decode(1.0, 999.0).groups, ROUND, heads=8.0, kv_heads=1.0)
    shared, lone = (part_of(op, ROUND, BARE | {"task": 1.0, "splits": 1.0, "lone": value}) for value in (1.0, 3.0))
    # 1000 keys without a cost of their own take 2 x 8 x 256 FLOP at 10 TFLOP/s of a unit: 0.4096 us besides the task
    assert lone.tiles_s - shared.tiles_s == pytest.approx(2 * (1e-6 + 1000 * 8 * 2 * 256 / 1e13))


def test_partial_results_are_moved_through_memory() -> None:
    op = kernel(decode(64.0, 1.0).groups, replace(ROUND, l2_bytes=None), heads=32.0, kv_heads=8.0)
    part = part_of(op, replace(ROUND, l2_bytes=None), BARE | {"partial": 64.0})
    # 64 sequences x 32 heads x 128 elements x 64 bytes over 1 TB/s
    assert part.fixed_s == pytest.approx(64 * 32 * 128 * 64 / 1e12)


def test_triton_pads_heads_to_a_power_of_two() -> None:
    op = kernel(prefill(1.0, 4096.0).groups, ROUND, dims=(72.0, 72.0))
    plain, padded = (part_of(op, ROUND, PLAIN | {"padded": value}) for value in (0.0, 1.0))
    assert float(padded.tiles_s / plain.tiles_s) == pytest.approx(128 / 72)


def test_tasks_take_as_many_cycles_at_every_clock() -> None:
    fast = replace(ROUND, clock_hz=2 * power.H100_CLOCK_HZ, vector_clock_hz=None)
    constants = BARE | {"task": 4.0, "key": 50.0}
    slow_s, fast_s = (
        part_of(kernel(decode(64.0, 99.0).groups, chip), chip, constants).tiles_s for chip in (ROUND, fast)
    )
    assert float(slow_s / fast_s) == pytest.approx(2.0)


def test_tiles_of_flashinfer_grow_with_the_rows_of_a_sequence() -> None:
    # 4 heads share a tile: 4 x 4, 4 x 16 and 4 x 64 rows run in tiles of 16, 64 and 128 rows: 1, 1 and 2 per KV head
    rows = [
        float(attention_prefill._rows(prefill(1.0, new).groups[0], SHAPE, 4.0, ROUND, PLAIN | {"rows": 16.0}))
        for new in (4.0, 16.0, 64.0)
    ]
    assert rows == [16.0, 64.0, 128.0]


SHAPE = AttentionShape(groups=prefill(1.0, 4.0).groups, heads=32.0, kv_heads=8.0, qk_dim=128.0, v_dim=128.0)
