"""Bands of 80 % intervals under the curves of a report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html import unescape
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.reports.html import curves, page
from llmviewer.reports.plots.intervals import MAX_BANDS
from llmviewer.reports.report import Report

BATCHES = np.array([1.0, 8.0, 64.0])
LLAMA = "llama-2-7b"


@cache
def report(*efficiencies: str, output_len: int = 16) -> Report:
    """A configuration per efficiency, over BATCHES, with columns joined as the command joins them."""
    sizes = {"input_len": 256, "output_len": output_len}
    results = {name: lv.analyze(LLAMA, "a6000", efficiency=name, **sizes) for name in efficiencies}
    swept = [lv.analyze(LLAMA, "a6000", batch_size=BATCHES, efficiency=one, **sizes).columns() for one in efficiencies]
    names = dict.fromkeys(name for columns in swept for name in columns)
    points = {name: [v for one in swept for v in one.get(name, [None] * len(BATCHES))] for name in names}
    return Report(results=results, points=points | {"configuration": [n for n in efficiencies for _ in BATCHES]})


def data(of: Report, metric: str) -> list[dict[str, Any]]:
    return next(chart.data for chart in curves.sweep(of).charts if chart.key == f"curve-{metric}")


def bands(of: Report, metric: str) -> list[dict[str, Any]]:
    return [trace for trace in data(of, metric) if trace["meta"] == "band"]


@pytest.mark.parametrize("metric", ["ttft", "tpot"])
def test_a_band_goes_along_the_low_ends_and_back_along_the_high_ends(metric: str) -> None:
    of = report("calibrated")
    (band,) = bands(of, f"{metric}_s")
    assert band["x"] == [1.0, 8.0, 64.0, 64.0, 8.0, 1.0]
    low, high = (np.array(of.points[f"{metric}_{end}80_s"]) * 1e3 for end in ("low", "high"))  # axes in ms
    assert band["y"] == pytest.approx([*low, *high[::-1]])
    line = data(of, f"{metric}_s")[1]  # bands come first, so that lines lie on them
    assert (np.array(line["y"]) > low).all() and (np.array(line["y"]) < high).all()
    assert (band["fillcolor"], band["hoverinfo"]) == (line["line"]["color"], "skip") and band["opacity"] < 0.5


def test_the_band_of_the_throughput_is_the_interval_of_the_request_inverted() -> None:
    """64 sequences of 16 tokens in 2 to 4 s are 512 to 256 tokens/s."""
    of = report("calibrated")
    (band,) = bands(of, "output_tokens_per_s")
    tokens = BATCHES * 16.0
    assert band["y"][:3] == pytest.approx(tokens / np.array(of.points["e2e_high80_s"]))
    assert band["y"][:2:-1] == pytest.approx(tokens / np.array(of.points["e2e_low80_s"]))


def test_points_state_their_interval() -> None:
    """For example `8: 1.15 s (80 %: 1.02 s to 1.31 s)`."""
    of = report("calibrated")
    hover = data(of, "ttft_s")[1]["hovertext"][1]
    low, high = (of.points[f"ttft_{end}80_s"][1] for end in ("low", "high"))
    found = re.search(r"8: [\d.]+ (?:ms|s) \(80 %: ([\d.]+) (ms|s) to ([\d.]+) (ms|s)\)$", hover)
    assert found
    seconds = {"ms": 1e-3, "s": 1.0}
    assert float(found[1]) * seconds[found[2]] == pytest.approx(low, rel=0.01)
    assert float(found[3]) * seconds[found[4]] == pytest.approx(high, rel=0.01)


def test_bounds_and_memory_have_no_band() -> None:
    assert bands(report("calibrated"), "total_bytes") == []
    of = report("ideal")
    assert bands(of, "ttft_s") == [] and curves.sweep(of).bands == ""
    both = report("ideal", "calibrated")
    assert [band["y"] for band in bands(both, "ttft_s")] == [bands(report("calibrated"), "ttft_s")[0]["y"]]


def test_bands_that_would_hide_each_other_are_left_out() -> None:
    """Six curves: points still state their intervals, and a sentence says why there are no bands."""
    one = report("calibrated")
    many = MAX_BANDS + 1
    points = {name: list(found) * many for name, found in one.points.items()}
    points["configuration"] = [str(at) for at in range(many) for _ in BATCHES]
    of = replace(one, results={str(at): one.results["calibrated"] for at in range(many)}, points=points)
    assert bands(of, "ttft_s") == [] and "80 %" in data(of, "ttft_s")[0]["hovertext"][0]
    assert (
        curves.sweep(of).bands
        == "Points state their 80 % intervals; bands of more than 5 curves would hide each other."
    )


def test_the_page_explains_and_carries_the_bands() -> None:
    text = page.text(report("calibrated"))
    assert "Bands: 80 % intervals of calibrated times" in unescape(text)
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, flags=re.DOTALL)
    assert found and sum(trace.get("meta") == "band" for one in json.loads(found[1]) for trace in one["data"]) == 3


def test_chips_with_the_same_budget_share_a_line() -> None:
    """Two lines at one height would print their names over each other."""
    options = {"efficiency": "ideal", "output_len": 1}
    results = {chip: lv.analyze(LLAMA, chip, **options) for chip in ("h100-sxm", "a100-80gb-sxm", "a6000")}
    points: dict[str, list[Any]] = {"configuration": list(results)}
    for result in results.values():
        for name, found in result.columns().items():
            points.setdefault(name, []).extend(found.tolist())
    of = Report(results=results, points=points)
    names = [trace["name"] for trace in data(of, "total_bytes") if trace["name"].startswith("budget")]
    assert names == ["budget, h100-sxm, a100-80gb-sxm", "budget, a6000"]
