"""The interactive roofline of a report: roofs and their names, marks at what operators attain and at their bounds."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.reports.html import operators, roofline, roofs
from llmviewer.reports.report import Report


def answers_of(**configurations: dict[str, Any]) -> list[dict[str, Any]]:
    """Answers of a report.  Keywords: name -> options of `analyze`."""
    results = {name: lv.analyze(**{"efficiency": "ideal", **options}) for name, options in configurations.items()}
    return Report(results=results).configurations


def roofline_of(**configurations: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Traces and layout of the roofline of a report."""
    answers = answers_of(**configurations)
    chart = roofline.chart(answers, operators.lines(answers))
    return chart.data, chart.layout


def roofs_of(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [trace for trace in traces if "text" in trace]


def test_the_ridge_label_does_not_overlap_roofs() -> None:
    """The label is left of and above the ridge, because other roofs and their names begin right of it."""
    traces, layout = roofline_of(a={"model": "deepseek-v2-lite", "hardware": "h100-sxm", "quantization": "w8a8-fp8"})
    (ridge,) = [trace for trace in roofs_of(traces) if trace["text"][1].startswith("ridge")]
    assert ridge["textposition"] == "top left"
    assert layout["xaxis"]["range"][1] - math.log10(ridge["x"][1]) > 1.5


def test_names_of_the_roofs_of_several_chips_do_not_overlap() -> None:
    """Names stand at the right end, above or below their roofs; one without room is left to the hover text."""
    chips = {name: {"model": "llama-2-7b", "hardware": name} for name in ("a6000", "h100-sxm", "mi300x", "h200")}
    traces, layout = roofline_of(**chips)
    low, high = layout["yaxis"]["range"]
    per_decade = roofs.PLOT_HEIGHT / (high - low)
    named = [trace for trace in roofs_of(traces) if trace["text"][1]]
    assert len(named) >= 4
    spans = []
    for trace in named:
        height = math.log10(trace["y"][1]) * per_decade
        spans.append((height, height + 16.0) if trace["textposition"] == "top left" else (height - 16.0, height))
    for (bottom, _), (_, below) in pairwise(sorted(spans, reverse=True)):
        assert bottom >= below - 1.0
    assert all(trace["name"] in trace["hovertemplate"] for trace in roofs_of(traces))


def test_a_roof_belongs_to_the_configurations_that_use_it() -> None:
    """Both use the memory; only one computes in fp8, so that its roof hides with it."""
    common = {"model": "llama-2-7b", "hardware": "h100-sxm"}
    traces, _ = roofline_of(first=common, second={**common, "quantization": "fp8"})
    owners = {trace["name"]: trace["meta"] for trace in roofs_of(traces)}
    assert next(meta for name, meta in owners.items() if name.startswith("device memory")) == ["first", "second"]
    assert next(meta for name, meta in owners.items() if name.startswith("tensor fp8")) == ["second"]


def test_bounds_are_hollow_and_joined_to_what_operators_attain() -> None:
    answers = answers_of(a={"model": "llama-2-7b", "hardware": "a6000", "efficiency": "calibrated"})
    traces = {trace["name"]: trace for trace in roofline.chart(answers, operators.lines(answers)).data}
    bounds, marks = traces["a, prefill bound"], traces["a, prefill"]
    found = {o["name"]: o for o in answers[0]["stages"]["prefill"]["operators"]}
    at = next(at for at, text in enumerate(marks["hovertext"]) if text.startswith("<b>q_proj</b>"))
    q_proj = found["q_proj"]
    ends = [q_proj["flops"] / q_proj[time] / 1e12 for time in ("ideal_time_s", "time_s")]
    assert bounds["y"][3 * at : 3 * at + 2] == pytest.approx(ends)
    assert bounds["x"][3 * at : 3 * at + 2] == [marks["x"][at]] * 2
    assert set(bounds["marker"]["symbol"]) >= {"circle-open"}
    assert marks["marker"]["symbol"][at] == "circle"
    assert traces["a, decode"]["marker"]["symbol"][at] == "circle-dot"


def test_ideal_times_have_the_bounds_only_and_the_title_says_so() -> None:
    answers = answers_of(a={"model": "llama-2-7b", "hardware": "a6000"})
    chart = roofline.chart(answers, operators.lines(answers))
    names = [trace["name"] for trace in chart.data]
    assert not [name for name in names if name.endswith("bound")]
    marks = next(trace for trace in chart.data if trace["name"] == "a, prefill")
    assert all(symbol.endswith("-open") for symbol in marks["marker"]["symbol"])
    assert chart.title.startswith("llama-2-7b on a6000: prefill and decode step, flash_attention, batch 1, input ")
    assert chart.title.endswith(", ideal")
