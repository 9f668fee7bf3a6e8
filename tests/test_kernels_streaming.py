"""Memory-bound kernels: minimum time, bandwidth, rows over units, cost per row; never faster than the data sheet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from llmviewer.calibrate import tables
from llmviewer.core.counts import Count
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.ir import Operator, Tensor, whole
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import prefill
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.specs import load
from llmviewer.models import load as model
from llmviewer.ops.elementwise import ACTIVATIONS, add, gated, layer_norm, rms_norm
from llmviewer.techniques.kernels.fuse import fuse
from llmviewer.techniques.kernels.fusion_rules import RULES
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from llmviewer.timing import roofline
from llmviewer.timing.kernels import streaming
from llmviewer.timing.kernels.family import Constants
from llmviewer.timing.roofline import ideal

FP16 = DTYPES["fp16"]
#: 2 us minimum, 0.8 of the bandwidth, 1.5 times that in L2; 20 byte per cycle and unit; 100 ns per row.
PLAIN: dict[str, float] = {
    "floor": 2.0, "memory": 0.8, "warm": 1.5, "unit": 20.0, "spread": 0.0, "row": 100.0, "along": 0.0,
}  # fmt: skip


def residual_sum(tokens: Count, width: float) -> Operator:
    x = Tensor(name="x", elements=tokens * width, dtype=FP16)
    return add("attn_add", x, x, tokens)


def seconds(operator: Operator, chip: Chip, constants: Constants = PLAIN) -> Count:
    timing = roofline.time_operator(
        operator, chip, lambda o, c: streaming.rates(o, c, constants), operator.traffic_bytes
    )  # fmt: skip
    return timing.time_s


def test_large_tensors_take_a_floor_and_a_share_of_the_bandwidth() -> None:
    """A sum of 65,536 x 8,192 fp16 elements moves 3.2 GB: 2 us + 3.2 GB / (0.8 x 2039 GB/s)."""
    operator = residual_sum(65536.0, 8192.0)
    assert seconds(operator, load("a100-80gb-sxm")) == pytest.approx(2e-6 + 6.0 * 65536 * 8192 / (0.8 * 2039e9))


def test_tensors_in_the_l2_are_faster() -> None:
    """512 x 4,096: 12.6 MB, below 3/4 of 40 MiB: 1.5 x 0.8 of 2039 GB/s."""
    operator = residual_sum(512.0, 4096.0)
    assert seconds(operator, load("a100-80gb-sxm")) == pytest.approx(2e-6 + 6.0 * 512 * 4096 / (1.2 * 2039e9))


def test_between_three_quarters_of_the_l2_and_all_of_it_the_gain_is_lost() -> None:
    chip = replace(load("a100-80gb-sxm"), l2_bytes=8e6)
    for moved, share in ((6e6, 1.2), (7e6, 1.0), (8e6, 0.8), (80e6, 0.8)):
        operator = residual_sum(moved / 6.0 / 4000.0, 4000.0)
        assert seconds(operator, chip) == pytest.approx(2e-6 + moved / (share * 2039e9))


def test_a_chip_of_unknown_l2_reads_from_memory() -> None:
    chip = replace(load("a100-80gb-sxm"), l2_bytes=None, units=None)
    assert seconds(residual_sum(512.0, 4096.0), chip) == pytest.approx(2e-6 + 6.0 * 512 * 4096 / (0.8 * 2039e9))


def test_one_row_is_processed_by_one_unit() -> None:
    """One token of 16,384: 98 kB, in the L2, at 1.5 x 20 byte x 1.41 GHz; 58 tokens, on 58 of 108 units, take as long:
    58 units move 1.64 TB/s, more than 0.8 of the bandwidth."""
    expected = 2e-6 + 6.0 * 16384 / (1.5 * 20.0 * 1.41e9)
    for tokens in (1.0, 27.0, 57.0):
        assert seconds(residual_sum(tokens, 16384.0), load("a100-80gb-sxm")) == pytest.approx(expected)
    assert seconds(residual_sum(59.0, 16384.0), load("a100-80gb-sxm")) > expected * 1.001


def test_softmax_has_one_row_per_head() -> None:
    """Softmax of one query, 32 heads, 4,000 keys: 32 rows on 32 units, like 32 tokens."""
    scores = Tensor(name="scores", elements=32.0 * 4000.0, dtype=FP16)
    by_token = add("scores", scores, scores, 32.0)
    by_head = replace(by_token, kind=Kind.SOFTMAX, output_shape=(1.0, 32.0, 4000.0))
    assert seconds(by_head, load("h100")) == seconds(by_token, load("h100"))
    assert streaming.quantities(by_head, load("h100")) == {"rows": 32.0, "width": 4000.0}


@pytest.mark.parametrize("kind", [Kind.CONV, Kind.RECURRENCE])
def test_one_token_of_a_mixer_uses_all_units(kind: Kind) -> None:
    operator = replace(residual_sum(1.0, 1e6), kind=kind)
    assert seconds(operator, load("h100")) == seconds(
        residual_sum(132.0, 1e6 / 132.0), load("h100"), PLAIN | {"row": 0.0}
    )


def test_a_row_may_be_spread_over_all_units() -> None:
    """One token of 16,384: 98 kB at 1.5 x 0.8 of the bandwidth."""
    expected = 2e-6 + 6.0 * 16384 / (1.2 * 2039e9)
    assert seconds(residual_sum(1.0, 16384.0), load("a100-80gb-sxm"), PLAIN | {"spread": 1.0}) == pytest.approx(
        expected
    )


def test_unit_throughput_depends_on_its_clock_not_on_memory() -> None:
    """A kernel of 5 byte per cycle: 132 units at 1.98 GHz move 1.31 TB/s, on an H100 and on an H200 of 4.8 TB/s."""
    slow = PLAIN | {"unit": 5.0}
    for chip in ("h100-sxm", "h200"):
        moved = 6.0 * 65536 * 8192
        assert seconds(residual_sum(65536.0, 8192.0), load(chip), slow) == pytest.approx(
            2e-6 + moved / (5 * 132 * 1.98e9)
        )


def test_a_chip_with_one_large_core_is_priced_like_an_a100() -> None:
    """A TPU v5e of 819 GB/s: 20 of 13.4 byte are 1.5 times the bandwidth at 108 rows; 0.8 of it is less."""
    moved = 6.0 * 65536 * 8192
    assert seconds(residual_sum(65536.0, 8192.0), load("tpu-v5e")) == pytest.approx(
        2e-6 + moved / (0.8 * 819e9), rel=1e-2
    )


def test_many_short_rows_cost_one_block_each() -> None:
    """100,000 rows of 8 over 108 units, 100 ns each: 92.6 us; their 4.8 MB take 2 us."""
    assert seconds(residual_sum(1e5, 8.0), load("a100-80gb-sxm")) == pytest.approx(2e-6 + 1e5 / 108.0 * 100e-9)


@pytest.mark.parametrize("chip", ["h100-sxm", "a100-80gb-sxm", "l40s", "rtx-4090", "mi300x", "b200", "tpu-v5e"])
@pytest.mark.parametrize("floor", [0.0, 1.0, 5.0])
def test_no_kernel_is_faster_than_the_data_sheet(chip: str, floor: float) -> None:
    """Data kept in the L2 may be read faster than memory, but the kernel never beats the ideal bound."""
    loaded = load(chip)
    operator = residual_sum(np.geomspace(1.0, 1e6, 200), 4096.0)
    least = roofline.time_operator(operator, loaded, ideal, operator.traffic_bytes).time_s
    found = seconds(operator, loaded, PLAIN | {"floor": floor, "memory": 1.0, "warm": 4.0, "unit": 200.0})
    assert (np.asarray(found) >= np.asarray(least) * (1.0 - 1e-12)).all()


def test_a_point_and_a_sweep_agree() -> None:
    tokens = np.array([1.0, 100.0, 1e5])
    swept = seconds(residual_sum(tokens, 4096.0), load("h100-sxm"))
    assert list(np.asarray(swept)) == [float(seconds(residual_sum(t, 4096.0), load("h100-sxm"))) for t in tokens]


def test_streaming_variants_are_chosen_by_kind_and_name() -> None:
    x = Tensor(name="x", elements=4096.0, dtype=FP16)
    assert streaming.variant(rms_norm("attn_norm", 4096.0, FP16).operator(x, 1.0)) == "norm"
    assert streaming.variant(layer_norm("attn_norm", 4096.0, FP16).operator(x, 1.0)) == "norm"
    assert streaming.variant(gated("mlp_act", (whole(x),), x, 1.0, ACTIVATIONS["silu"])) == "act"
    assert streaming.variant(residual_sum(1.0, 4096.0)) == "add"


def test_every_streaming_operator_has_a_known_variant() -> None:
    """Plain, quantized and fused; a fused kernel with a norm is a norm, one with rope is a rope kernel."""
    known = {*streaming.FAMILY.substitutes, "softmax", "conv", "recurrence"}
    chip = load("h100-sxm")
    expected = {
        "attn_norm+attn_norm_quantize": "norm", "mlp_act+mlp_act_quantize": "act", "attention_quantize": "quantize",
        "rope": "rope", "attn_add+mlp_norm": "norm", "expert_combine": "add", "router_softmax": "softmax",
    }  # fmt: skip
    for name in ("llama-2-7b", "qwen3-30b-a3b", "jamba-v0.1", "gemma-2-9b"):
        graph = quantize(parse_scheme("w8a8-fp8"))(model(name).graph(prefill(1.0, 128.0)))
        for form in (graph, fuse(tuple(rule.name for rule in RULES), chip)(graph)):
            for _, operator in form:
                if operator.kind not in (Kind.GEMM, Kind.ATTENTION, Kind.COLLECTIVE):
                    sort = streaming.variant(operator)
                    assert sort in known, operator.name
                    assert expected.get(operator.name, sort) == sort, operator.name


def test_single_block_rows_take_time_by_length_for_any_number_of_rows() -> None:
    """2 us + 14,336 elements of 2 cycles at 1.98 GHz each, for one row and for a hundred."""
    along = {**PLAIN, "along": 2.0, "unit": 200.0}
    for tokens in (1.0, 100.0):
        assert seconds(residual_sum(tokens, 14336.0), load("h200"), along) == pytest.approx(2e-6 + 14336 * 2.0 / 1.98e9)


def test_data_that_repeated_runs_leave_in_the_l2_is_faster_than_memory() -> None:
    """12 MB stay in the 96 MB of an L40S and move at 5 times its 864 GB/s; 480 MB move at the rate of memory."""
    constants = streaming.FAMILY.start_values() | {
        "floor": 0.0, "memory": 1.0, "warm": 5.0, "unit": 200.0, "spread": 1.0, "row": 0.0, "along": 0.0,
    }  # fmt: skip
    chip = load("l40s")
    row = {"device": "l40s", "source": "aiconfigurator", "engine": "vllm 0.22", "op": "scale_matrix", "dtype": "fp8"}
    frame = pd.DataFrame([{**row, "tokens": t, "width": 4096, "latency_us": 10.0} for t in (1000, 40000)])
    (group,) = tables.row_groups(tables.with_default_columns(frame))
    assert isinstance(group, tables.RowGroup)
    operator = group.operators[0]
    timing = roofline.time_operator(
        operator, chip, lambda o, c: streaming.rates(o, c, constants), operator.traffic_bytes
    )  # fmt: skip
    small, large = 3.0 * 4096.0 * np.array([1000.0, 40000.0]) / 864e9
    assert np.asarray(timing.time_s) == pytest.approx([small / 5.0, large], rel=1e-3)
