"""Tables of AMD's kernel library as measured tables, the profiles fitted to them, and orders that these must keep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from llmviewer.calibrate import fit_tables
from llmviewer.calibrate.fit import folds_of, row_timing
from llmviewer.calibrate.predict import PredictionOptions, predict
from llmviewer.calibrate.rows.routing import UNIFORM, busiest_device
from llmviewer.calibrate.rows.tuned import translated
from llmviewer.calibrate.tables import RowGroup, row_groups, with_default_columns
from llmviewer.core import data
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Place
from llmviewer.hardware import specs
from llmviewer.timing import profile as profiles
from llmviewer.timing.calibrated import calibrated
from llmviewer.timing.lending import Kernel

#: Rows of ROCm/aiter's tuned tables (https://github.com/ROCm/aiter, aiter/configs/, commit e4048607a535, MIT):
#: gfx, units, format, m, n, k, time [us].
PRODUCTS = (
    ("gfx950", 256, "bf16", 1, 57344, 8192, 161.0),
    ("gfx950", 256, "bf16", 128, 8192, 3584, 25.4),
    ("gfx950", 256, "bf16", 32768, 57344, 8192, 21168.2),
    ("gfx950", 256, "fp8", 1, 53248, 16384, 149.2),
    ("gfx950", 256, "fp8-block", 8192, 4352, 4096, 175.4),
    ("gfx950", 256, "mxfp4", 16, 106496, 16384, 145.7),
    ("gfx950", 256, "int8", 1, 57344, 8192, 88.9),
    ("gfx942", 304, "fp8-block", 16, 12800, 5120, 22.3),
    ("gfx942", 304, "fp8-block", 4096, 12800, 5120, 642.3),
)
#: gfx, units, tokens, hidden and intermediate size, experts, choice, formats of inputs and weights, scales, time [us].
EXPERTS = (
    (None, 256, 64, 7168, 256, 384, 8, "torch.bfloat16", "torch.int4", "QuantType.per_1x32", 194.0),
    (None, 256, 64, 7168, 256, 384, 8, "torch.float4_e2m1fn_x2", "torch.float4_e2m1fn_x2", "QuantType.per_1x32", 147.5),
    (None, 256, 4096, 7168, 256, 384, 8, "torch.float8_e4m3fn", "torch.float4_e2m1fn_x2", "QuantType.per_1x32", 460.4),
    (None, 304, 4096, 4096, 192, 128, 8, "torch.bfloat16", "torch.bfloat16", "QuantType.No", 810.6),
)
EXPERT_COLUMNS = "gfx cu_num token model_dim inter_dim expert topk q_dtype_a q_dtype_w q_type us".split()


def products(rows: Sequence[tuple[object, ...]] = PRODUCTS) -> pd.DataFrame:
    return pd.DataFrame(rows, columns="gfx cu_num format m n k us".split())


def experts() -> pd.DataFrame:
    return pd.DataFrame(EXPERTS, columns=EXPERT_COLUMNS)


def test_aiters_columns_become_ours() -> None:
    found = translated(products())
    assert [*found["device"].unique()] == ["mi355x", "mi300x"]
    assert [*found["dtype"].unique()] == ["bfloat16", "fp8", "fp8_block", "mxfp4", "int8"]
    assert [*found.iloc[0][["m", "n", "k", "latency_us", "source", "engine"]]] == [1, 57344, 8192, 161.0] + 2 * [
        "aiter"
    ]
    layers = translated(experts())
    assert [*layers["device"]] == ["mi355x", "mi355x", "mi355x", "mi300x"]
    assert [*layers["dtype"]] == ["int4_wo", "mxfp4", "w4a8_mxfp4_mxfp8", "bfloat16"]
    assert [*layers.iloc[0][["tokens", "hidden", "inter", "experts", "topk"]]] == [64, 7168, 256, 384, 8]
    other = pd.DataFrame({"m": [1], "n": [1], "k": [1]})
    assert translated(other) is other


def test_a_chip_of_other_units_is_left_out_by_name() -> None:
    found = predict(translated(products([("gfx1250", 96, "bf16", 1, 64, 64, 3.0)])), PredictionOptions())
    assert "gfx1250 with 96 units" in found["reason"].iloc[0]


def test_random_routing_reaches_the_experts_that_a_model_expects() -> None:
    # 32 tokens that choose 8 of 256 experts miss one with probability (1 - 8/256)^32 = 0.362
    rows, active = busiest_device(32, 256, 8, 1, UNIFORM)
    assert (rows, active) == (256.0, pytest.approx(256 * (1 - (1 - 8 / 256) ** 32)))
    assert active == pytest.approx(163.3, abs=0.1)


def test_rows_are_those_of_operands_in_device_memory_whose_inputs_are_quantized_before() -> None:
    """101 copies of weights of 470 MB do not fit in 256 MiB of cache; 101 of 16 kB do."""
    (large,) = row_groups(translated(products([("gfx950", 256, "fp8", 1, 57344, 8192, 90.0)])))
    (small,) = row_groups(translated(products([("gfx950", 256, "fp8", 1, 128, 128, 3.0)])))
    for group, share in ((large, 1.0), (small, 0.01)):
        assert isinstance(group, RowGroup)
        (product,) = group.operators
        assert product.shape.converts == 0.0  # type: ignore[union-attr]
        every = product.traffic_bytes + product.moved_bytes(Place.L2)
        assert np.all(product.traffic_bytes == pytest.approx(share * every, rel=0.05))
    (layer, *_) = row_groups(with_default_columns(translated(experts().iloc[1:2])))
    assert isinstance(layer, RowGroup)
    assert [one.name for one in layer.operators if "quantize" in one.name] == ["expert_act_quantize"]


@pytest.mark.parametrize("table", [products(), experts()], ids=["products", "experts"])
def test_profiles_tell_the_times_of_the_table(table: pd.DataFrame) -> None:
    found = predict(translated(table), PredictionOptions())
    assert found["predicted_us"].to_numpy() == pytest.approx(found["latency_us"].to_numpy(), rel=0.35)
    assert [*found["basis"].unique()] == ["measured (mi355x)", "measured (mi300x)"]
    inside = (found["low95_us"] <= found["latency_us"]) & (found["latency_us"] <= found["high95_us"])
    assert inside.all()


def test_a_fit_holds_out_whole_matrices_and_takes_few_of_many_rows() -> None:
    dense = [("gfx950", 256, "bf16", m, n, 4096, 1e6) for n in (512, 1024, 2048) for m in range(16, 4096, 16)]
    frame = translated(products(dense))
    folds = pd.Series(folds_of(frame, "gemm")).groupby(frame["n"].to_numpy()).nunique()
    assert [*folds] == [1, 1, 1]
    found = fit_tables.gather([frame], specs.load("mi355x"))
    (reason,) = found.left_out
    kept = sum(len(part.index) for sample in found.samples for part in sample.rows)
    assert "as another one of the same matrix" in reason
    assert kept + found.left_out[reason] == len(dense)
    assert kept <= 3 * 16 * 8 + 3  # eight factors of two, at most 16 rows in each


def test_products_faster_than_the_data_sheet_are_not_fitted() -> None:
    # 2 x 4096^3 FLOP take 55 us at 2516 TFLOP/s
    rows = [("gfx950", 256, "bf16", 4096, 4096, 4096, us) for us in (40.0, 90.0)]
    frame = translated(products(rows)).drop(columns="fold")
    found = fit_tables.gather([frame], specs.load("mi355x"))
    assert [(reason, rows) for reason, rows in found.left_out.items() if "data sheet" in reason] == [
        ("products in less than 0.9 of the data sheet's time, wrong in their source", 1)
    ]


def test_engines_run_the_products_of_the_library_but_experts_of_their_own() -> None:
    def runs(family: str, engine: str) -> bool:
        return Kernel(family=family, variant="bf16", engine=engine, chip="mi355x", generation="cdna4").runs("aiter")

    assert [runs("gemm", name) for name in ("vllm", "sglang", "trtllm", "torch", "torch-eager")] == 3 * [True] + 2 * [
        False
    ]
    assert not runs("experts", "vllm")


#: Every chip with a profile, and chips that take those of a sibling.
CHIPS = (*sorted(path.stem for path in data.folder(profiles.FOLDER).glob("*.yaml")), "mi325x", "mi350x")
#: Columns and depths of matrices with a tile for every unit, which few rows make memory-bound; and rows.
WIDE, DEPTHS, FEW = (28672, 57344, 106496), (4096, 8192), (1, 4, 8)


def seconds(chip: str, dtype: str, rows: Sequence[int] = FEW, engine: str = "vllm") -> Array:
    """Predicted times of products as a model of the engine runs them."""
    shapes = [(m, n, k) for m in rows for n in WIDE for k in DEPTHS]
    frame = pd.DataFrame(shapes, columns=["m", "n", "k"]).assign(device=chip, source="llmviewer", dtype=dtype)
    (group,) = row_groups(frame.assign(engine=engine, latency_us=1.0))
    if not isinstance(group, RowGroup):
        raise UserError(group.reason)
    efficiency = calibrated(group.chip, engine, borrowed={"gemm/fp8-block": "trtllm"})
    return np.asarray(row_timing(group, efficiency).time_s)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("chip", CHIPS)
def test_narrower_weights_are_not_slower_where_memory_bounds(chip: str, engine: str) -> None:
    wide = seconds(chip, "bfloat16", engine=engine)
    for dtype in ("fp8", "fp8_block", "int8", "mxfp4"):
        assert np.all(seconds(chip, dtype, engine=engine) <= wide), dtype


@pytest.mark.parametrize(("slower", "faster"), [("mi300x", "mi325x"), ("mi350x", "mi355x"), ("h100-sxm", "h200")])
def test_more_bandwidth_and_power_are_never_slower(slower: str, faster: str) -> None:
    for dtype in ("bfloat16", "fp8", "fp8_block", "int8"):
        assert np.all(seconds(faster, dtype) <= seconds(slower, dtype)), dtype
        if slower.startswith("mi"):  # the same programs at any number of rows
            many = (1, 64, 1024, 8192)
            assert np.all(seconds(faster, dtype, many) <= seconds(slower, dtype, many)), dtype


def test_origins_are_in_the_profiles() -> None:
    for name in ("mi300x", "mi355x"):
        found = profiles.shipped(name)
        assert found is not None and "github.com/ROCm/aiter" in found.provenance["origin"]
        assert {engine for family in found.kinds for _, engine in found.fits_of(family)} == {"aiter"}
        assert Path(found.path).stem == name
