"""Tiled matrix products: numbers calculated by hand, and properties of any shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.core import dtypes
from llmviewer.core.ir import Block, Operator, Tensor
from llmviewer.formats.linear import Format, with_formats
from llmviewer.hardware import specs
from llmviewer.ops.gemm import GemmShape, Linear
from llmviewer.timing import roofline
from llmviewer.timing.kernels import gemm, power, tiles
from llmviewer.timing.roofline import ideal

H100 = specs.load("h100-sxm")
PLAIN = gemm.FAMILY.start_values()
SIZES = st.integers(min_value=1, max_value=512).map(lambda blocks: blocks * 64.0)


def product(
    m: float, n: float, k: float, low: Format | None = None, experts: float = 1.0, active: float = 1.0
) -> Operator:
    x = Tensor(name="x", elements=m * k, dtype=dtypes.get_dtype("bf16"))
    linear = Linear(name="gemm", in_features=k, out_features=n, dtype=dtypes.get_dtype("bf16"), experts=experts)
    block = Block(name="row", operators=(linear.operator(x, m, active=active),))
    return (block if low is None else with_formats(block, lambda _: low)).operators[-1]


def layer(operator: Operator) -> Operator:
    """The product as measured in engine layers: launched by the host and quantizing its own input."""
    assert isinstance(operator.shape, GemmShape)
    return replace(operator, shape=replace(operator.shape, converts=1.0))


def microseconds(operator: Operator, chip: specs.Chip = H100, **constants: float) -> float:
    timing = roofline.time_operator(
        operator, chip, lambda op, on: gemm.rates(op, on, PLAIN | constants), operator.traffic_bytes
    )
    return float(np.asarray(timing.time_s).item()) * 1e6


def test_tiles_per_unit_range_from_exact_to_rounded_up_by_the_ragged_share() -> None:
    pace = (100.0, 1e15, 1e13, 2.0, 0.0)
    whole = tiles.tiles_per_unit(tiles.cached_grid(300.0, 64.0, (*pace, 1.0)), 130.0, 1.0)
    # 130 x 300 in 128 x 128: 2 x 3 tiles; in 32 x 64: 5 x 5; on 100 units
    assert whole[:, 0] == pytest.approx([0.25, 0.15, 0.06, 0.03, 0.09])
    exact = tiles.tiles_per_unit(tiles.cached_grid(300.0, 64.0, (*pace, 0.0)), 130.0, 1.0)
    assert exact[2, 0] == pytest.approx(130 * 300 / 128 / 128 / 100)


def test_tile_time_is_the_slower_of_compute_and_loading() -> None:
    grid = tiles.cached_grid(4096.0, 100.0, (100.0, 1e15, 2e13, 2.0, 0.0, 1.0))
    # depth 100 in steps of 64: 128.  256 x 128: 2 x 256 x 128 x 128 / (1e15 / 100) = 0.839 us;
    # 32 x 64: (32 + 64) x 2 B x 128 / (2e13 / 100) = 0.123 us, longer than its 0.052 us of multiplying
    assert grid.depth_s[3, 0] * 1e6 == pytest.approx(0.8389, abs=1e-4)
    assert grid.depth_s[0, 0] * 1e6 == pytest.approx(0.1229, abs=1e-4)


def test_a_large_product_runs_at_the_share_of_the_peak_that_power_leaves() -> None:
    large = product(8192.0, 8192.0, 8192.0)
    seconds = microseconds(
        large, floor=0.0, compute=1.0, sharpness=20.0, exposed=0.0, droop=0.0, prologue=0.0, ragged=0.0
    )
    assert seconds == pytest.approx(2 * 8192.0**3 / (989.4e6 * 0.80), rel=1e-3)


def test_deep_narrow_products_are_split_along_k() -> None:
    deep = product(16.0, 64.0, 65536.0)
    assert microseconds(deep, split=200.0) > 2.0 * microseconds(deep, split=2.0)
    assert microseconds(deep, by_rows=1.0) > 2.0 * microseconds(deep)


def test_experts_do_not_share_tiles() -> None:
    together = product(128.0, 4096.0, 4096.0)
    apart = product(128.0, 4096.0, 4096.0, experts=64.0, active=64.0)
    units = np.ones(1)
    grid = tiles.cached_grid(4096.0, 64.0, (132.0, 1e15, 1e13, 2.0, 0.0, 1.0))
    counts = [tiles.tiles_per_unit(grid, 128.0 * units, groups) for groups in (1.0, 64.0)]
    assert counts[1][0] == pytest.approx(16.0 * counts[0][0])  # 64 tiles of rows, one each, for 4
    assert microseconds(apart) > 20.0 * microseconds(together)


def test_eight_bit_inputs_cost_their_conversion() -> None:
    fp8 = Format(weights=dtypes.get_dtype("fp8"), activations=dtypes.get_dtype("fp8"))
    operator = layer(product(4096.0, 1024.0, 4096.0, fp8))
    dearer = microseconds(operator, convert=2.0, convert_row=10.0) - microseconds(
        operator, convert=1.0, convert_row=0.0
    )
    assert dearer == pytest.approx(3 * 4096 * 4096 / 3.35e6 + 4096 * 0.010, rel=1e-6)
    in_a_graph = product(4096.0, 1024.0, 4096.0, fp8)  # the quantize operator before it pays the conversion
    assert microseconds(in_a_graph, convert=2.0) == microseconds(in_a_graph, convert=0.0)


def test_the_launch_of_a_conversion_belongs_to_measured_rows_only() -> None:
    # 1.98 kilocycles of a 1.98 GHz clock are 1 us
    fp8 = Format(weights=dtypes.get_dtype("fp8"), activations=dtypes.get_dtype("fp8"))
    in_a_graph = product(16.0, 1024.0, 1024.0, fp8)
    row = layer(in_a_graph)
    assert microseconds(row, convert_floor=1.98) - microseconds(row) == pytest.approx(1.0, rel=1e-6)
    assert microseconds(in_a_graph, convert_floor=1.98) == microseconds(in_a_graph)
    stamped = replace(in_a_graph, shape=replace(in_a_graph.shape, stamped=1.0))  # type: ignore[type-var]
    assert microseconds(stamped, convert_floor=1.98) - microseconds(stamped) == pytest.approx(1.0, rel=1e-6)
    assert microseconds(stamped, convert_row=40.0) == microseconds(in_a_graph)


def test_variants_are_distinguished_by_formats_and_blocks() -> None:
    block = dtypes.scaled("fp8", 8, group=128.0 * 128.0, scale_bits=32, name="fp8-128x128")
    assert gemm.variant(product(1.0, 64.0, 64.0)) == "bf16"
    assert (
        gemm.variant(product(1.0, 64.0, 64.0, Format(weights=block, activations=dtypes.get_dtype("fp8"))))
        == "fp8-block"
    )
    assert gemm.variant(product(1.0, 64.0, 64.0, Format(weights=dtypes.grouped_int(4)))) == "w4a16"
    mxfp4 = dtypes.get_dtype("mxfp4")
    assert gemm.variant(product(1.0, 64.0, 64.0, Format(weights=mxfp4, activations=mxfp4))) == "fp4"


def test_block_scale_time_is_hidden_by_host_launches() -> None:
    block = dtypes.scaled("fp8", 8, group=128.0 * 128.0, scale_bits=32, name="fp8-128x128")
    low = Format(weights=block, activations=dtypes.get_dtype("fp8"))
    small, large = layer(product(8.0, 512.0, 512.0, low)), layer(product(8192.0, 8192.0, 8192.0, low))
    assert microseconds(small, launch_few=60.0) == pytest.approx(60.0, abs=3.0)
    odd = layer(product(8.0, 512.0, 576.0, low))
    assert microseconds(odd, launch_many=60.0, launch_odd=3.0) == pytest.approx(180.0, abs=5.0)
    # the first of six timed runs waits for its launch, the others are launched meanwhile
    assert microseconds(large, launch_many=60.0) - microseconds(large, launch_many=0.0) == pytest.approx(60.0 / 6.0)


def test_rows_that_are_padded_to_a_multiple_of_four_are_launched_longer() -> None:
    block = dtypes.scaled("fp8", 8, group=128.0 * 128.0, scale_bits=32, name="fp8-128x128")
    low = Format(weights=block, activations=dtypes.get_dtype("fp8"))
    seconds = [
        microseconds(layer(product(m, 512.0, 512.0, low)), launch_many=180.0, launch_padded=1.3) for m in (64.0, 65.0)
    ]
    assert seconds == pytest.approx([180.0, 234.0], abs=0.5)


def test_host_launches_never_reach_a_model_in_a_graph() -> None:
    block = dtypes.scaled("fp8", 8, group=128.0 * 128.0, scale_bits=32, name="fp8-128x128")
    in_a_graph = product(8.0, 512.0, 512.0, Format(weights=block, activations=dtypes.get_dtype("fp8")))
    slow = {"launch_few": 500.0, "launch_many": 500.0, "launch_odd": 10.0, "launch_padded": 5.0}
    none = {"launch_few": 0.0, "launch_many": 0.0}
    assert microseconds(in_a_graph, **slow) == microseconds(in_a_graph, **none) < 10.0


def test_fixed_times_are_in_clock_cycles() -> None:
    """4.2 thousand cycles take 3 us at the 1.41 GHz of an A100, and 2.12 us at the 1.98 GHz of an H100."""
    tiny = product(1.0, 64.0, 64.0)
    for chip, expected in (("a100-80gb-sxm", 4.2 / 1.41), ("h100-sxm", 4.2 / 1.98)):
        found = specs.load(chip)
        assert microseconds(tiny, found, floor=4.2) - microseconds(tiny, found, floor=0.0) == pytest.approx(expected)


def test_kernels_with_large_tiles_take_as_long_for_one_row_as_for_128() -> None:
    """One tile of 128 x 128 on one of 132 units: 2 x 128 x 128 x 65536 / (1978.9e12 x 0.8 / 132 FLOP/s) = 179 us."""
    fp8 = Format(weights=dtypes.get_dtype("fp8"), activations=dtypes.get_dtype("fp8"))
    only = {"by_rows": 2.0, "compute": 1.0, "balance": 5.0, "ragged": 1.0, "sharpness": 20.0}
    only |= dict.fromkeys(("floor", "prologue", "exposed", "droop"), 0.0)
    one, full = (microseconds(product(m, 128.0, 65536.0, fp8), **only) for m in (1.0, 128.0))
    assert one == full == pytest.approx(2 * 128 * 128 * 65536 / (1978.9e6 * 0.8 / 132), rel=1e-3)


def test_a_donors_share_counts_once_on_the_targets_own_sustained_peak() -> None:
    """A large product of an A40 at a share c fitted on an A100: 2 m n k / (149.7 TFLOP/s x 0.867 x c).

    0.867 = 0.86 x (300 W / 149.7 TFLOP/s / 1.97)^0.45; published products of 108 to 119 TFLOP/s are then a c of 0.83
    to 0.92, and torch's on the A100 are one of 0.86.
    """
    a40, large = specs.load("a40"), product(8192.0, 8192.0, 8192.0)
    alone = {"floor": 0.0, "sharpness": 20.0, "exposed": 0.0, "droop": 0.0, "prologue": 0.0, "ragged": 0.0}
    sustained = 149.7e6 * 0.86 * (300.0 / 149.7 / 1.97) ** 0.45
    for share in (0.86, 1.0):
        seconds = microseconds(large, a40, compute=share, balance=20.0, **alone)
        assert seconds == pytest.approx(2 * 8192.0**3 / (sustained * share), rel=1e-3)
    assert 108e6 < sustained * 0.86 < 119e6


@given(m=SIZES, n=SIZES, k=SIZES, ragged=st.sampled_from((0.0, 0.3, 1.0)), by_rows=st.sampled_from((0.0, 1.0, 2.0)))
@settings(max_examples=60)
def test_time_is_at_least_the_bound_and_never_falls_for_twice_the_work(
    m: float, n: float, k: float, ragged: float, by_rows: float
) -> None:
    chosen = {"compute": 1.25, "memory": 1.15, "floor": 0.0, "ragged": ragged, "by_rows": by_rows}
    operator = product(m, n, k)
    seconds = microseconds(operator, **chosen)
    bound = float(roofline.time_operator(operator, H100, ideal, operator.traffic_bytes).time_s) * 1e6
    assert seconds >= bound * (1.0 - 1e-9)
    for larger in (product(2 * m, n, k), product(m, 2 * n, k), product(m, n, 2 * k)):
        assert microseconds(larger, **chosen) >= seconds * 0.98


def test_scalars_and_arrays_of_shapes_agree() -> None:
    shapes = [(1.0, 4096.0, 4096.0), (513.0, 6144.0, 768.0), (8192.0, 512.0, 16384.0)]
    m, n, k = (np.array(column) for column in zip(*shapes, strict=True))
    together = gemm.rates(product(m, n, k), H100, PLAIN)  # type: ignore[arg-type]
    for at, shape in enumerate(shapes):
        single = gemm.rates(product(*shape), H100, PLAIN)
        assert np.asarray(together.matrix_flops_per_s)[at] == pytest.approx(
            np.asarray(single.matrix_flops_per_s).item()
        )
        assert np.asarray(together.fixed_s)[at] == pytest.approx(np.asarray(single.fixed_s).item())


def test_less_power_for_the_same_peak_lowers_the_sustained_rate() -> None:
    assert power.sustained_share(specs.load("h100-pcie")) < power.sustained_share(H100) == pytest.approx(0.80)
    weak = replace(H100, tdp_w=350.0)
    assert power.sustained_share(weak) == pytest.approx(0.80 * (350.0 / 989.4 / 0.7075) ** 0.45, rel=1e-3)
    # 46 to 54 of a TITAN RTX's 130.5 TFLOP/s at 280 W leave 18.2 of the 65 TFLOP/s of a T4 with 70 W
    assert 65.0 * power.sustained_share(specs.load("t4")) == pytest.approx(65.0 * 0.38 * (70.0 / 65.0 / 2.15) ** 0.45)


def test_tensor_cores_that_are_cut_run_at_full_rate_and_are_fed_as_before() -> None:
    # GA102: 84 SM x 1.8 GHz x 1024 FLOP is an A6000's 154.8 TFLOP/s; 82 x 1.695 x 1024 twice the 71 of an RTX 3090
    assert [power.uncut(specs.load(name)) for name in ("a6000", "rtx-3090", "l40s", "l40", "l20")] == [1, 2, 1, 2, 2]
    # 2.3 to 3.8 times the W per TFLOP/s of the chips measured; an L40 has 1.7 times
    cut = [specs.load(name) for name in ("rtx-3090", "rtx-4090", "l20", "h20", "a10g")]
    assert all(power.has_room(chip) for chip in cut) and not power.has_room(specs.load("l40"))
    assert all(0.95 < power.sustained_share(chip) <= power.CUT_SUSTAINED for chip in cut)


def test_boards_of_ada_sustain_by_their_watts() -> None:
    for name in ("l40", "rtx-6000-ada", "l4"):
        chip = specs.load(name)
        assert chip.matrix_rate("bf16") * power.sustained_share(chip) == pytest.approx(chip.tdp_w / 2.4 * 1e12)
    # the law of the board whose kernels were timed for milliseconds
    assert power.sustained_share(specs.load("l40s")) == pytest.approx(0.63, rel=1e-3)


def test_a_power_limit_slows_a_geforce_down() -> None:
    board = specs.load("rtx-3090")
    limited = replace(board, power_limit_w=220.0)
    # prompts: 907 of 1051 tokens/s at 250 of 327 W, (250 / 327)^0.55 (https://github.com/noonghunna/club-3090)
    assert power.sustained_share(limited) / power.sustained_share(board) == pytest.approx((220.0 / 350.0) ** 0.45)
    # reading takes 0.8 x 350 = 280 W
    assert power.reachable_share(limited) / power.reachable_share(board) == pytest.approx(220.0 / 280.0)
    assert power.read_share(replace(board, power_limit_w=290.0)) == 1.0


def test_a_stated_format_of_the_engines_own_option_is_named() -> None:
    """vLLM's own gptq is gptq_gemm here, with a note; programs for which vLLM's preset stands choose their kernels."""
    run = {"model": "llama-3.1-8b", "hardware": "a6000", "quantization": "gptq", "batch_size": 100}
    own, other = lv.analyze(engine="vllm", **run), lv.analyze(engine="lmdeploy", **run)
    assert "--quantization gptq of vLLM is gptq_gemm here" in " ".join(own.to_dict()["warnings"])
    assert "gptq_gemm" not in " ".join(other.to_dict()["warnings"])
    assert own.tpot_s > 1.5 * other.tpot_s


def test_kernels_that_unpack_apart_lose_to_16_bit_at_large_batches() -> None:
    """vLLM's --quantization gptq: beyond 50 tokens the unpacked weights are written and read, 2 x 16 of 4.16 bits."""
    at = {
        (name, batch): float(
            lv.analyze("llama-3.1-8b", "a6000", engine="vllm", quantization=name, batch_size=batch).tpot_s
        )
        for name in ("none", "gptq", "gptq_marlin", "gptq_gemm", "awq_gemm")
        for batch in (1, 100)
    }
    assert at["gptq_marlin", 1] == at["awq_gemm", 1] <= at["gptq_gemm", 1] < at["none", 1]
    assert at["gptq_marlin", 100] < at["none", 100] < at["gptq_gemm", 100] == at["gptq", 100]
    weights = 2 * 6.98e9 * 2.0  # 16-bit bytes of the linear layers, twice
    moved_s = weights / (768e9 * 0.95)
    assert at["gptq_gemm", 100] - at["gptq_marlin", 100] > moved_s
    assert at["awq_gemm", 100] < at["none", 100]  # awq: from 256 tokens on


def test_more_bandwidth_for_the_same_units_lowers_its_utilization() -> None:
    # 3350 GB/s over 132 SM x 1.83 GHz: 13.9 of the 100 bytes per clock that a unit can request
    assert power.reachable_share(H100) == pytest.approx(1 / 1.139, rel=1e-3)
    assert power.reachable_share(specs.load("h200")) < power.reachable_share(H100)


def test_few_rows_use_matrix_vector_kernels_on_chips_with_slow_tiles() -> None:
    """An M4 Max does 30 FLOP per byte: one row in a tile of 32 would take twice as long as its weights from memory."""
    chip = specs.load("m4-max")
    matrix_s = 2.0 * 4096 * 14336 / 546e9
    one, eight, nine = (microseconds(product(m, 14336.0, 4096.0), chip) * 1e-6 for m in (1.0, 8.0, 9.0))
    assert one < eight < 1.4 * matrix_s
    assert nine > 1.3 * eight  # the matrix is reread, or tiles are mostly padding


def test_an_h20_multiplies_few_rows_as_slowly_as_a_tile_where_its_padding_counts() -> None:
    """wgmma takes 64 rows: 2 x 64 x 5120 x 27648 FLOP are 122 us of 148 TFLOP/s, the weights 71 us of 4 TB/s."""
    chip, few = specs.load("h20"), product(2.0, 27648.0, 5120.0)
    hidden, padded = microseconds(few, chip), microseconds(few, chip, padded=1.0)
    assert hidden < 122.0 < padded
    assert padded == pytest.approx(microseconds(product(64.0, 27648.0, 5120.0), chip), rel=0.02)
    assert microseconds(few, H100, padded=1.0) == microseconds(few, H100)  # 18 us of tiles behind 85 of memory


def test_memory_bound_chips_do_not_use_matrix_vector_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """H100 and A100, the chips with fitted constants."""
    for chip in (H100, specs.load("a100-80gb-sxm")):
        operator = product(4.0, 4096.0, 4096.0)
        before = microseconds(operator, chip)
        with monkeypatch.context() as without:
            without.setattr(gemm, "padding_dominates", lambda *_: False)
            assert microseconds(operator, chip) == before
