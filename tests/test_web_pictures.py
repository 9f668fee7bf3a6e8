"""Pictures of the viewer: names fit into their places, rows are told apart, ticks and labels do not overlap."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

pytest.importorskip("dash", reason="needs dash: pip install '.[web]'")

from llmviewer.reports.figure import Axis
from llmviewer.reports.html import charts, drawing, front, roofline, waterfall
from llmviewer.reports.html.charts import short_names
from llmviewer.reports.html.layers import HEIGHT, WIDTH
from llmviewer.reports.report import Report
from llmviewer.reports.web.network import network
from llmviewer.reports.web.state import parsed
from llmviewer.reports.web.view import View, view_of

#: DeepSeek-V3 as vLLM runs it, whose fused operators have the longest names.
FUSED = "model=deepseek-v3&hardware=h200&tensor_parallel_size=8&engine=vllm"
#: Width of a character and height of a line of an operator's label [pixel], in a wide font of 11 pixels.
CHARACTER, LINE = 6.5, 11.0


def view(query: str) -> View:
    return View(state=parsed(query))


def elements(one: View) -> list[dict[str, Any]]:
    _, graph, *_ = network(one)["pieces"]
    found: list[dict[str, Any]] = graph["network"]["elements"]
    return found


def test_names_of_fused_operators_fit_into_their_boxes() -> None:
    labels = {one["data"]["id"]: one for one in elements(view(f"{FUSED}&tab=network")) if "operator" in one["data"]}
    fused = labels["operator attn_add+mlp_norm+mlp_norm_quantize"]
    assert fused["data"]["label"].split("\n")[:2] == ["attn_add+mlp_norm+", "mlp_norm_quantize"]
    for one in labels.values():
        rows = one["data"]["label"].split("\n")
        assert max(map(len, rows)) * CHARACTER < WIDTH
        assert len(rows) * LINE < HEIGHT


def test_a_graph_is_laid_out_once() -> None:
    """Its places are given; the component's own layout runs later, when the graph may have been replaced."""
    _, graph, *_ = network(view("tab=network"))["pieces"]
    assert graph["network"]["autoRefreshLayout"] is False


LONG = "deepseek-v3, h200, engine=vllm, tensor_parallel_size="


def test_short_names_differ_where_names_do() -> None:
    """The beginning has model and chip, the end the last option."""
    short = short_names([f"{LONG}8", f"{LONG}16", "gpt2, t4"])
    assert short["gpt2, t4"] == "gpt2, t4"
    assert short[f"{LONG}8"] == "deepseek-v3, h20…parallel_size=8"
    assert len(set(short.values())) == 3
    middle = [f"deepseek-v3, h200, quantization={name}, tensor_parallel_size=8" for name in ("fp8", "w4a16", "int8")]
    numbered = list(short_names(middle).values())
    assert numbered[1] == f"{numbered[0]} (2)" and numbered[2] == f"{numbered[0]} (3)"
    assert all(len(one) <= 36 for one in numbered)


def test_every_configuration_has_a_row_of_its_own() -> None:
    """Bars of two configurations with one label would be stacked to 200 % of the time."""
    views = [view_of(f"{FUSED.replace('=8', f'={size}')}", "light") for size in (8, 4)]
    answers = Report(results={one.name: one.result for one in views}).configurations
    for trace in charts.bounds(answers).data:
        assert len(set(trace["y"])) == 4
    for trace in charts.memory(answers).data:
        assert len(set(trace["y"])) == 2
    assert {row for trace in charts.bounds(answers[:1]).data for row in trace["y"]} == {"prefill", "decode"}


def test_the_waterfall_has_room_for_its_bars() -> None:
    ends = (f"{LONG}8, speculative=mtp,tokens=1,acceptance=0.8", 1e-2), (f"{LONG}8", 2e-2)
    chart = waterfall.chart(*ends, {"speculative": 1e-2}, "tpot_s")
    first, _, last = chart.data[0]["x"]
    assert first.startswith("A: deepseek-v3") and last.startswith("B: deepseek-v3")
    assert max(len(first), len(last)) <= len("A: ") + waterfall.MOST_CHARACTERS
    assert chart.title == "TPOT, from one configuration to the other"


def test_names_in_the_roofline_do_not_cover_each_other() -> None:
    """Some operators near 2 TFLOP/s in a decode step are so close that only the longest is named."""
    one = view(f"{FUSED}&tab=roofline")
    chart = roofline.chart([one.answer], one.lines)
    low, high = chart.layout["xaxis"]["range"]
    places = []
    for note in chart.layout["annotations"]:
        width = len(note["text"]) * (high - low) / 80.0
        left = note["x"] if note["xanchor"] == "left" else note["x"] - width
        places.append((left, left + width, note["y"]))
    assert len(places) > 2
    for (left, right, y), (other_left, other_right, other_y) in combinations(places, 2):
        assert right <= other_left or other_right <= left or abs(y - other_y) >= 0.25


def test_logarithmic_axes_of_load_and_cost_have_few_ticks() -> None:
    """At 1, 2 and 5 of every decade; labels at every digit overlap."""
    decade = np.array([1.0, 20.0])
    assert drawing.axis(Axis(title="TTFT (ms)"), decade)["dtick"] == "D2"
    assert drawing.axis(Axis(title="TTFT (ms)", linear=True), decade)["type"] == "linear"
    point = {"usd_per_hour": 2.0, "hardware": "h100-sxm", "devices": 1, "output_tokens_per_s_per_user": 100.0}
    drawn = front.chart({"request": {"front": "usd"}, "frontier": [point], "best": point})
    assert drawn.layout["xaxis"]["dtick"] == "D2"
