"""Every figure of a chip may be an array: many hypothetical chips in one analysis, each equal to the single chip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llmviewer.hardware import specs
from llmviewer.hardware.chip import FIGURES, PER_DTYPE, Chip
from llmviewer.reports.catalog_page import UNITS
from llmviewer.result.result import Result
from tests.answers import analyze

H100 = specs.load("h100-sxm")
FACTORS = np.array([0.5, 1.0, 3.0])


def scaled(name: str, factor: np.ndarray | float) -> Chip:
    """The chip with one figure, of all dtypes, times a factor."""
    value = getattr(H100, name)
    if name in PER_DTYPE:
        return replace(H100, **{name: {dtype: rate * factor for dtype, rate in value.items()}})
    return replace(H100, **{name: (1e13 if value is None else value) * factor})


def with_link(factor: np.ndarray | float) -> Chip:
    link = H100.links["nvlink"]
    return replace(H100, links={**H100.links, "nvlink": replace(link, bandwidth_bytes_per_s=4.5e11 * factor)})


def run(chip: Chip, **options: object) -> Result:
    return analyze("llama-3.1-70b", chip, output_len=3, tensor_parallel_size=4, **options)


@pytest.mark.parametrize("efficiency", ["ideal", "calibrated"])
@pytest.mark.parametrize("name", FIGURES)
def test_an_array_of_chips_equals_the_single_chips(name: str, efficiency: str) -> None:
    together = run(scaled(name, FACTORS), efficiency=efficiency)
    for at, factor in enumerate(FACTORS):
        single = run(scaled(name, float(factor)), efficiency=efficiency)
        assert together.metrics(at)["tpot_s"] == single.metrics()["tpot_s"]
        assert together.metrics(at)["ttft_s"] == single.metrics()["ttft_s"]
        assert together.memory_at(at)["capacity_bytes"] == single.memory["capacity_bytes"]
        assert together.to_dict(at)["hardware"] == single.to_dict()["hardware"]


def test_an_array_of_links_equals_the_single_links() -> None:
    together = run(with_link(FACTORS))
    times = [together.metrics(at)["ttft_s"] for at in range(3)]
    assert times == [run(with_link(float(factor))).metrics()["ttft_s"] for factor in FACTORS]
    assert times[0] > times[1] > times[2], "prefill exchanges activations over the link"


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_label_and_a_printable_unit(name: str) -> None:
    assert FIGURES[name].label
    assert FIGURES[name].unit in {*UNITS, "FLOP/s"}
