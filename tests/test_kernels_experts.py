"""Kernels of routed experts: numbers calculated by hand, and the fits that their operators take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from llmviewer import models
from llmviewer.calibrate.rows.experts import MOE
from llmviewer.calibrate.rows.routing import busiest_device
from llmviewer.calibrate.tables import RowGroup, row_groups
from llmviewer.calibrate.usable import usable_rows
from llmviewer.core import dtypes
from llmviewer.core.ir import Operator, Place, Tensor
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode, prefill
from llmviewer.hardware import specs
from llmviewer.ops.gemm import EXPERT_PREFIX, GemmShape, Linear, is_routed
from llmviewer.techniques.kernels.fuse import fuse
from llmviewer.techniques.parallel.shard import Sharding, shard
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from llmviewer.timing import roofline
from llmviewer.timing.calibrated import Calibrated
from llmviewer.timing.kernels import experts, power
from llmviewer.timing.kernels.families import FAMILIES, families_of
from llmviewer.timing.profile import Fit, Profile
from llmviewer.timing.roofline import ideal

H100 = specs.load("h100-sxm")
PLAIN = experts.FAMILY.start_values()
#: Constants under which only tiles, traffic or fixed times are left.
NOTHING = dict.fromkeys(("floor", "feed", "tile", "ragged", "expert", "sort", "rows", "idle"), 0.0)


def product(rows: float, n: float, k: float, active: float, **shape: Any) -> Operator:
    """A grouped bf16 product of `active` of 64 experts."""
    x = Tensor(name="x", elements=rows * k, dtype=dtypes.get_dtype("bf16"))
    linear = Linear(
        name=EXPERT_PREFIX + "up_proj", in_features=k, out_features=n, dtype=dtypes.get_dtype("bf16"), experts=64.0
    )
    operator = linear.operator(x, rows, active=active)
    return replace(operator, shape=replace(operator.shape, **shape)) if shape else operator  # type: ignore[type-var]


def microseconds(operator: Operator, chip: specs.Chip = H100, **constants: float) -> float:
    timing = roofline.time_operator(
        operator, chip, lambda op, on: experts.rates(op, on, PLAIN | constants), operator.traffic_bytes
    )
    return float(np.asarray(timing.time_s).item()) * 1e6


def routed(graph: Any) -> list[Operator]:
    return [op for _, op in graph if is_routed(op)]


def test_every_active_expert_has_a_tile_and_half_of_its_last_one_is_padding() -> None:
    shape = GemmShape(m=1024.0, n=1.0, k=1.0, experts=64.0, active=8.0)
    # 16 rows: 1024 / 16 + 4 = 68; 64: 16 + 4 = 20; 128: 8 + 4 = 12; 256: 4 + 4 = 8
    assert experts.tiles(shape)[:, 0].tolist() == [68.0, 20.0, 12.0, 8.0]
    # one row each for 64 experts: 64 tiles of any size
    assert experts.tiles(replace(shape, m=64.0, active=64.0))[:, 0].tolist() == [64.0] * 4


def test_time_of_the_tiles_of_one_wave() -> None:
    # 64 experts of one row, 128 columns: 128 tiles of 16 x 64 on 132 units, in one wave; each takes
    # 2 x 16 x 64 x 8192 FLOP at 1/132 of what an H100 sustains
    sustained = 989.4e12 * float(power.sustained_share(H100))
    wave = 2 * 16 * 64 * 8192 * 132 / sustained * 1e6
    found = microseconds(product(64.0, 128.0, 8192.0, 64.0), **NOTHING, compute=1.0, memory=1.15, sharpness=20.0)
    memory = (64 * 128 * 8192 * 2 + 64 * 8192 * 2 + 64 * 128 * 2) / 3.35e12 / float(power.reachable_share(H100)) * 1e6
    assert found == pytest.approx(max(wave, memory / 1.15), rel=0.02) and wave < memory


def test_fixed_time_of_a_product() -> None:
    # 5 us + 8 experts x 100 ns + 1024 rows x 2 ns = 7.848 us
    nothing = microseconds(product(1024.0, 512.0, 512.0, 8.0), **NOTHING)
    fixed = microseconds(product(1024.0, 512.0, 512.0, 8.0), **NOTHING | {"floor": 5.0, "expert": 100.0, "sort": 2.0})
    assert fixed - nothing == pytest.approx(7.848)


def test_masked_rows_of_other_devices_are_moved() -> None:
    # 65536 rows of the group, 8192 of them its own: (65536 - 8192) x (4096 + 2048) x 2 B = 705 MB, 210 us at 3.35 TB/s
    own = product(8192.0, 4096.0, 2048.0, 8.0)
    group = product(8192.0, 4096.0, 2048.0, 8.0, routed=65536.0)
    moved = microseconds(group, **NOTHING | {"idle": 1.0}) - microseconds(own, **NOTHING | {"idle": 1.0})
    assert moved == pytest.approx((65536 - 8192) * 6144 * 2 / 3.35e12 * 1e6)


def test_gate_and_up_take_as_long_as_their_fused_product() -> None:
    model = models.load("qwen3-30b-a3b")
    apart = model.graph(decode(4.0, 1024.0))
    fused = fuse(("gate-up",), H100)(apart)

    def of(graph: Any) -> float:
        return sum(microseconds(op, sharpness=20.0) for op in routed(graph) if "gate" in op.name or "up_" in op.name)

    assert len(routed(apart)) == len(routed(fused)) + 1
    assert of(apart) == pytest.approx(of(fused), rel=0.01)


def test_a_device_of_many_multiplies_the_tiles_that_suit_the_rows_of_all() -> None:
    # 128 rows of 8 experts: 12 tiles of 16 x 64, which take 16 x 64 + 64 x 80 = 6144 each; 32768 rows on them would
    # suit tiles of 256 x 128 (57344), of which the 128 rows need 8.  64 and 32 columns of tiles on 132 units.
    own, all_rows = product(128.0, 4096.0, 2048.0, 8.0), product(128.0, 4096.0, 2048.0, 8.0, routed=32768.0)
    tiles = NOTHING | {"compute": 0.01, "sharpness": 20.0, "feed": 64.0}
    small, large = 12 * 64 / 132 * 6144, 8 * 32 / 132 * 57344
    assert microseconds(all_rows, **tiles | {"whole": 0.0}) == pytest.approx(microseconds(own, **tiles), rel=1e-3)
    ratio = microseconds(all_rows, **tiles | {"whole": 1.0}) / microseconds(own, **tiles)
    assert ratio == pytest.approx(large / small, rel=0.01)
    assert microseconds(own, **tiles | {"whole": 1.0}) == microseconds(own, **tiles | {"whole": 0.0})


def test_elementwise_work_on_rows_is_its_traffic_at_full_bandwidth() -> None:
    graph = models.load("mixtral-8x7b").graph(prefill(1.0, 512.0))
    act, combine = (op for op in routed(graph) if op.kind is Kind.ELEMENTWISE)
    # 512 tokens x 2 experts: reads gate and up, writes one, 14336 wide; reads 2 rows per token and weights, writes one
    assert microseconds(act) == pytest.approx(1024 * 3 * 14336 * 2 / 3.35e12 * 1e6)
    assert microseconds(combine) == pytest.approx((512 * 3 * 4096 * 2 + 512 * 2 * 2) / 3.35e12 * 1e6)
    assert families_of(act) == families_of(combine) == ("experts",)


@pytest.mark.parametrize("tokens", [1.0, 16.0, 300.0, 8192.0])
@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b"])
def test_no_operator_of_experts_is_faster_than_the_data_sheet(name: str, tokens: float) -> None:
    fastest = NOTHING | {"compute": 1.6, "memory": 1.15, "sharpness": 20.0}
    for operator in routed(models.load(name).graph(decode(tokens, 512.0))):
        bound = roofline.time_operator(operator, H100, ideal, operator.traffic_bytes).time_s
        assert microseconds(operator, **fastest) >= float(np.asarray(bound).item()) * 1e6 * (1.0 - 1e-9)


def test_variants_by_formats_of_weights_and_inputs() -> None:
    graph = models.load("mixtral-8x7b").graph(decode(4.0, 128.0))

    def variant(scheme: str) -> str:
        return experts.variant(routed(quantize(parse_scheme(scheme))(graph))[0])

    assert variant("w16a16") == "bf16" and variant("fp8") == "fp8" and variant("w4a16") == "w4a16"
    operator = routed(graph)[-2]
    mxfp4 = replace(operator.reads[1].tensor, dtype=dtypes.get_dtype("mxfp4"))
    reads = (operator.reads[0], replace(operator.reads[1], tensor=mxfp4))
    assert experts.variant(replace(operator, reads=reads)) == "w4a16-mxfp4"
    assert experts.variant(replace(operator, reads=reads, compute="fp8")) == "w4a8-mxfp4"
    assert experts.variant(replace(operator, reads=reads, compute="fp4")) == "fp4"


def test_a_device_sorts_the_rows_of_its_whole_group() -> None:
    # 64 tokens x 2 of 8 experts over 4 devices: 32 rows and 2 experts each, 128 rows in all
    graph = shard(Sharding(tensor=4, expert=4))(models.load("mixtral-8x7b").graph(decode(64.0, 128.0)))
    shape = routed(graph)[0].shape
    assert isinstance(shape, GemmShape)
    assert (float(shape.m), float(shape.experts), float(shape.routed)) == (32.0, 2.0, 128.0)  # type: ignore[arg-type]


def profile(chip: str, *keys: str) -> Profile:
    """A profile with fits of these keys; their floors count from 1."""
    found = Profile(chip=chip, title=chip, generation="hopper", provenance={}, texts=dict.fromkeys(keys, ""), path="x")
    for at, key in enumerate(keys):
        family, variant, engine = key.split("/")
        known = FAMILIES[family].start_values()
        found.parsed[key] = Fit(
            family=family, variant=variant, engine=engine, constants=known | {"floor": at + 1.0}, range={}, residuals={}
        )
    return found


def chosen(operator: Operator, source: Profile, **options: Any) -> tuple[str, str]:
    efficiency = Calibrated(sources=(source,), chip=source.chip, generation="hopper", **options)
    found = efficiency.primary_fit(operator)
    efficiency(operator, H100)  # the formula is that of the fit's own family
    return found.fit.key, found.basis


def test_fits_of_an_engine_s_own_products_come_first() -> None:
    source = profile("h100-sxm", "gemm/bf16/vllm", "experts/bf16/sglang", "experts/bf16/vllm", "experts/fp8/vllm")
    operator = product(64.0, 128.0, 128.0, 8.0)
    assert chosen(operator, source, engine="vllm") == ("experts/bf16/vllm", "measured")
    assert chosen(operator, source, engine="trtllm") == ("experts/bf16/sglang", "other engine")
    assert chosen(operator, source, borrowed={"experts/bf16": "sglang"})[0] == "experts/bf16/sglang"
    assert chosen(operator, source, engine="sglang-triton") == ("experts/bf16/sglang", "other engine")


def test_products_that_torch_timed_alone_price_no_layer_of_which_a_whole_one_was_measured() -> None:
    source = profile("h200", "experts/bf16/vllm", "experts/bf16/torch-products", "experts/bf16/torch")
    operator = product(64.0, 128.0, 128.0, 8.0)
    assert chosen(operator, source, engine="torch") == ("experts/bf16/torch", "measured")
    assert chosen(operator, source, engine="torch-products") == ("experts/bf16/torch-products", "measured")
    assert chosen(operator, source, engine="vllm") == ("experts/bf16/vllm", "measured")


def test_plain_products_are_the_last_resort_with_the_engine_that_they_are_borrowed_from() -> None:
    graph = quantize(parse_scheme("fp8-block"))(models.load("mixtral-8x7b").graph(decode(4.0, 128.0)))
    operator = next(op for op in routed(graph) if isinstance(op.shape, GemmShape))
    source = profile("h100-sxm", "gemm/fp8-block/vllm", "gemm/fp8-block/trtllm")
    assert chosen(operator, source, engine="vllm")[0] == "gemm/fp8-block/vllm"
    assert chosen(operator, source, engine="vllm", borrowed={"gemm/fp8-block": "trtllm"})[0] == "gemm/fp8-block/trtllm"


def test_elementwise_work_on_rows_takes_the_engine_s_fit_of_its_products() -> None:
    act = next(op for op in routed(models.load("mixtral-8x7b").graph(decode(4.0, 128.0))) if op.name == "expert_act")
    source = profile("h100-sxm", "streaming/act/vllm", "experts/fp8/sglang", "experts/fp8/vllm")
    assert chosen(act, source, engine="vllm")[0] == "experts/fp8/vllm"
    assert chosen(act, profile("h100-sxm", "streaming/act/vllm"), engine="vllm")[0] == "streaming/act/vllm"


def row(**columns: Any) -> tuple[Operator, ...]:
    """The operators of one measured layer: 64 tokens, 8 of 128 experts of 2048 x 768, 4 devices."""
    plain = {
        "device": "h100_sxm", "source": "aiconfigurator", "engine": "sglang 0.5.14", "dtype": "bfloat16",
        "kernel": "fused_moe_triton", "tokens": 64, "hidden": 2048, "inter": 768, "topk": 8, "experts": 128,
        "tp": 1, "ep": 4, "routing": "balanced", "latency_us": 100.0,
    }  # fmt: skip
    (part,) = row_groups(pd.DataFrame([plain | columns]))
    assert isinstance(part, RowGroup), part
    return part.operators


def shape_of(operators: tuple[Operator, ...]) -> tuple[float, ...]:
    shape = operators[-2].shape
    assert isinstance(shape, GemmShape) and shape.routed is not None
    return tuple(float(np.ravel(value)[0]) for value in (shape.m, shape.active, shape.n, shape.k, shape.routed))


def test_a_measured_layer_is_its_products_activation_and_weighted_sum() -> None:
    operators = row()
    assert [op.name for op in operators] == ["expert_act", "expert_combine", "expert_gate_up_proj", "expert_down_proj"]
    # 64 x 8 / 4 = 128 rows on each of 4 devices, over all of its 32 experts; gate and up have 2 x 768 columns
    assert shape_of(operators) == (128.0, 32.0, 1536.0, 2048.0, 512.0)
    # of a model without gate only up: 1856 columns; a tensor-parallel half of it 928
    ungated = row(hidden=2688, inter=1856, topk=6, ep=1, tp=2)
    assert shape_of(ungated) == (384.0, 128.0, 928.0, 2688.0, 384.0)
    assert shape_of(row(hidden=2688, inter=1856, topk=6, ep=1, tp=2, engine="sglang 0.5.10"))[2] == 1856.0


def test_old_sglang_computed_all_experts_of_the_tokens_that_reach_a_device() -> None:
    # 128 of 512 rows are of the device's experts; all 64 tokens have some of them: 64 x 8 rows
    assert shape_of(row(engine="sglang 0.5.10"))[0] == 512.0


def test_weights_that_fit_in_the_cache_are_read_from_it() -> None:
    # 32 experts x 3 x 2048 x 768 x 2 B = 302 MB of 50 MB: from memory; one expert, 9.4 MB: 98 % from the L2
    many, one = row(), row(tokens=1, ep=128)
    assert float(many[-1].moved_bytes(Place.L2)[0]) < 0.1 * float(many[-1].traffic_bytes[0])
    assert float(one[-1].moved_bytes(Place.L2)[0]) == pytest.approx(49 * float(one[-1].traffic_bytes[0]))


def test_a_power_law_loads_one_device_more_than_the_others() -> None:
    even, skewed = busiest_device(1024, 128, 8, 4, "balanced"), busiest_device(1024, 128, 8, 4, "power_law_1.2")
    assert even == (2048.0, 32.0) and 2.0 * 2048.0 > skewed[0] > 1.2 * 2048.0
    # one device computes every row, whatever the routing
    assert busiest_device(1024, 128, 8, 1, "power_law_1.2")[0] == pytest.approx(8192.0, rel=0.01)


@pytest.mark.parametrize(
    ("columns", "engine"),
    [
        ({"kernel": "sglang_fused_moe_triton"}, "sglang"),
        ({"kernel": "sglang_flashinfer_cutlass_moe"}, "sglang-untuned"),
        ({"kernel": "sglang_flashinfer_cutlass_moe", "device": "rtx_pro_6000_server"}, "sglang-cutlass"),
        # weights widened to 16 bits; gpt-oss runs OpenAI's kernel
        ({"kernel": "sglang_fused_moe_triton", "dtype": "w4a16_mxfp4"}, "sglang-triton"),
        ({"kernel": "sglang_fused_moe_triton", "device": "b200_sxm"}, "sglang-triton"),
        ({"kernel": "sglang_flashinfer_trtllm_moe", "device": "b200_sxm"}, "sglang"),
        ({"kernel": "vllm_fp8moe_triton", "engine": "vllm 0.24.0", "dtype": "fp8_block"}, "vllm"),
        ({"kernel": "vllm_flashinfer_cutlass", "engine": "vllm 0.24.0", "dtype": "fp8_block"}, "vllm-cutlass"),
        ({"kernel": "vllm_flashinfer_cutlass", "engine": "vllm 0.24.0", "dtype": "fp8"}, "vllm-untuned"),
        (
            {
                "kernel": "vllm_mxfp4moe_flashinfer_trtllm_mxfp4_mxfp8_trtllmmxfp4expertsmodular",
                "engine": "vllm 0.24.0",
                "dtype": "w4a8_mxfp4_mxfp8",
                "device": "b200_sxm",
            },
            "vllm-modular",
        ),
        ({"kernel": "moe_torch_flow_cutlass", "engine": "trtllm 1.3.0"}, "trtllm"),
    ],
)
def test_kernels_that_an_engine_does_not_run_by_default_have_a_suffix(columns: dict[str, str], engine: str) -> None:
    first = {"device": "h100_sxm", "engine": "sglang 0.5.14", "dtype": "bfloat16"} | columns
    assert MOE.engine(first["engine"].partition(" ")[0], first) == engine


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"routing": "random"}, "routing is none of balanced, uniform, power_law_<exponent>"),
        ({"ep": 3}, "ep does not divide experts"),
        ({"topk": 200}, "topk is larger than experts"),
    ],
)
def test_unusable_rows_of_experts_say_why(columns: dict[str, Any], why: str) -> None:
    frame = pd.DataFrame(
        [{"device": "h100_sxm", "dtype": "fp8", "kernel": "", "tokens": 8, "hidden": 64, "inter": 64, "topk": 2,
          "experts": 8, "tp": 1, "ep": 1, "routing": "balanced", "latency_us": 1.0} | columns]
    )  # fmt: skip
    usable, reasons = usable_rows(frame, "moe")
    assert usable.empty and reasons.tolist() == [why]
