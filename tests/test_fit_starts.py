"""Fits of constants whose cost has several minima, and of discrete settings that the start values hide."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("scipy", reason="fitting needs scipy")
import pandas as pd

from llmviewer.calibrate import fit as fitting
from llmviewer.calibrate.tables import RowGroup, row_groups
from llmviewer.hardware import specs
from llmviewer.timing.kernels.families import FAMILIES
from llmviewer.timing.roofline import ideal

STREAMING = FAMILIES["streaming"]


def rows_of_conversions(constants: dict[str, float]) -> RowGroup:
    """Conversions of activations to FP8 on a B200 whose latencies follow the constants."""
    sizes = itertools.product((1, 8, 32, 128, 512, 2048, 8192), (1024, 4096, 16384, 65536))
    frame = pd.DataFrame(list(sizes), columns=["tokens", "width"]).assign(
        device="b200_sxm", source="aiconfigurator", engine="sglang", op="scale_matrix", dtype="fp8", latency_us=1.0
    )
    efficiency = fitting.with_constants("streaming", constants, ideal)
    (rows,) = row_groups(frame, specs.load("b200"))
    assert isinstance(rows, RowGroup)
    frame["latency_us"] = fitting.predicted_seconds(rows, efficiency)[0] * 1e6
    (timed,) = row_groups(frame, specs.load("b200"))
    assert isinstance(timed, RowGroup)
    return timed


def test_a_fit_finds_that_rows_are_spread_over_all_units_although_its_first_guess_does_not_feel_it() -> None:
    # 2 cycles per element along a row, the start value, take longer than one unit needs for a row of its own
    true = STREAMING.start_values() | {
        "floor": 7.0,
        "warm": 1.2,
        "unit": 1.8,
        "spread": 1.0,
        "row": 20.0,
        "along": 0.02,
    }
    rows = rows_of_conversions(true)
    folds = np.arange(len(rows.measured_s), dtype=float) % 5
    sample = fitting.Sample(family="streaming", variant="quantize", engine="sglang", rows=(rows,), folds=(folds,))
    found = fitting.fit(sample, ideal)
    assert found.constants["spread"] == 1.0
    assert found.constants["unit"] == pytest.approx(1.8, rel=0.02)
    assert found.error["all"]["mape"] < 0.02


def test_a_start_is_the_start_values_with_one_further_initial_value() -> None:
    plain, *others = STREAMING.starts()
    assert plain == STREAMING.start_values()
    assert [start["unit"] for start in others] == [1.0, 20.0]
    assert all(start | {"unit": 5.0} == plain for start in others)
