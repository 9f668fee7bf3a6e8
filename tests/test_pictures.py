"""Pictures that a reader can tell apart and copy: ticks, dashes, groups, intervals, fonts, labels of bounds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import llmviewer as lv
from llmviewer import api
from llmviewer.cli import main
from llmviewer.core.workload import Request
from llmviewer.reports.plots import (
    bandwidth,
    curves,
    intervals,
    latency,
    length,
    memory,
    operators,
    pareto,
    parity,
    quantization,
    roofline,
    throughput,
    waterfall,
)
from llmviewer.reports.plots.style import SIZES, Style, colour, dashes, marker
from llmviewer.result.result import Result

HALF = Style(size=SIZES["paper"])
MODEL = "llama-3.2-1b"


def answer(chip: str = "a6000", efficiency: str = "calibrated", **options: str) -> Result:
    batch = np.array([1.0, 8.0, 64.0])
    request = Request(batch_size=batch, input_len=np.full(3, 512.0), output_len=np.full(3, 16.0))
    return api.configuration(MODEL, chip, efficiency=efficiency, **options).answer(request)


@pytest.fixture(scope="module")
def calibrated() -> Result:
    return answer()


@pytest.fixture(scope="module")
def ideal() -> Result:
    return answer(efficiency="ideal")


def key(figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def ticks_of(figure) -> list[str]:
    return [
        label.get_text()
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for label in (*axis.get_ticklabels(which="both"), axis.get_offset_text())
    ]


# ticks, colours and fonts


def test_no_tick_shows_the_source_of_a_formula(calibrated: Result) -> None:
    """Formulas are not parsed, because a chip's name may hold a `$`; ticks must therefore be plain numbers."""
    from matplotlib import rc_context

    rows = pd.DataFrame({"latency_us": [5.0, 80.0, 4e3], "predicted_us": [6.0, 70.0, 5e3], "kernel": ["a", "b", "c"]})
    table = rows.assign(low80_us=0.8 * rows["predicted_us"], high80_us=1.2 * rows["predicted_us"])
    with rc_context({"text.parse_math": False}):
        one = {"a": calibrated}
        found = [parity.picture(table, HALF), waterfall.picture({"a": calibrated, "b": answer("h100-sxm")}, HALF)]
        found += [kind.picture(one, HALF) for kind in (roofline, operators)]
        found += [kind.picture(one, HALF) for kind in (latency, throughput, length, quantization, memory, pareto)]
        found.append(bandwidth.picture(one, HALF))
        for figure in found:
            figure.canvas.draw()
    labels = [label for figure in found for label in ticks_of(figure)]
    assert len([label for label in labels if label]) > 60
    assert not [label for label in labels if set(label) & set("$\\{}")]
    assert {"10", "100", "1,000"} <= set(ticks_of(found[0]))


def test_twenty_eight_lines_differ_in_colour_or_dashes() -> None:
    """Seven colours times four dashes; the eighth line has the first one's colour."""
    looks = [(colour(at), dashes(at)) for at in range(28)]
    assert len(set(looks)) == 28
    assert colour(7) == colour(0)
    assert (dashes(7), marker(7)) != (dashes(0), marker(0))


@pytest.mark.parametrize("by_command", [True, False])
def test_a_pdf_embeds_truetype_fonts(by_command: bool, calibrated: Result, tmp_path: Path) -> None:  # noqa: FBT001
    path = tmp_path / "x.pdf"
    if by_command:
        assert main(["plot", "roofline", MODEL, "--hardware", "a6000", "-o", str(path)]) == 0
    else:
        latency.picture({"a": calibrated}, HALF).savefig(path)
    content = path.read_bytes()
    assert b"/Type3" not in content
    assert b"/CIDFontType2" in content


# bounds and intervals


def test_axes_of_bounds_say_so(ideal: Result, calibrated: Result) -> None:
    def labels(kind, *results: Result) -> list[str]:
        figure = kind.picture({str(at): one for at, one in enumerate(results)}, HALF)
        return [axes.get_ylabel() for axes in figure.axes]

    assert labels(latency, ideal) == ["Ideal TTFT (ms)", "Ideal TPOT (ms)"]
    assert labels(latency, calibrated) == ["TTFT (ms)", "TPOT (ms)"]
    assert labels(latency, ideal, calibrated) == ["TTFT (ms)", "TPOT (ms)"]  # the legend says which is which
    assert labels(throughput, ideal) == ["Ideal throughput (token/s)"]
    assert labels(length, ideal) == ["Ideal prefill time (ms)", "Ideal decode step time (ms)"]
    assert labels(operators, ideal) == ["Ideal prefill time (ms)", "Ideal decode step time (ms)"]
    assert labels(quantization, ideal)[:2] == ["Ideal prefill time (ms)", "Ideal decode step time (ms)"]
    assert labels(waterfall, ideal, answer(efficiency="ideal", quantization="w8a16")) == ["Ideal time (ms)"]
    figure = pareto.picture({"a": ideal}, HALF)
    assert figure.axes[0].get_xlabel() == "Ideal throughput per user (token/s)"


def test_the_interval_of_throughput_is_that_of_e2e_inverted(calibrated: Result, ideal: Result) -> None:
    """64 sequences of 16 tokens in the shortest E2E are the highest rate."""
    rows = curves.frame({"a": calibrated})
    low, high = intervals.ends(rows, "output_tokens_per_s")
    assert high[2] == pytest.approx(64 * 16 / rows["e2e_low80_s"][2])
    assert low[2] == pytest.approx(64 * 16 / rows["e2e_high80_s"][2])
    figure = throughput.picture({"a": calibrated}, HALF)
    assert key(figure) == ["80 % interval"]
    assert len(figure.axes[0].collections) == 1
    assert key(throughput.picture({"a": ideal}, HALF)) == []


def test_bands_of_many_configurations_are_left_out(calibrated: Result) -> None:
    """Six bands on top of each other hide the lines."""
    six = latency.picture({str(at): calibrated for at in range(6)}, HALF)
    assert [len(axes.collections) for axes in six.axes] == [0, 0]
    assert "80 % interval" not in key(six)


@pytest.mark.parametrize("kind", [operators, quantization])
def test_bars_have_whiskers_at_the_interval_of_the_stage(kind, calibrated: Result, ideal: Result) -> None:
    figure = kind.picture({"a": calibrated}, HALF)
    assert "80 % interval" in key(figure)
    for axes, stage in zip(figure.axes, ("prefill", "decode"), strict=False):
        found = calibrated.stage(stage)
        (whisker,) = [one for one in axes.collections if hasattr(one, "get_segments")]
        ends = whisker.get_segments()[0][:, 1]  # of the first point
        assert ends[1] / ends[0] == pytest.approx(
            found["time_interval_s"]["80"][1] / found["time_interval_s"]["80"][0], rel=1e-6
        )
    assert "80 % interval" not in key(kind.picture({"a": ideal}, HALF))


def test_bars_of_formats_are_times_over_the_first_with_intervals_of_the_ratio() -> None:
    """w8a16 against itself in two runs of one chip: 1.0x, and no error is left, as both run the same kernels."""
    plain, eight = answer(), answer(quantization="w8a16")
    results = {"none": plain, "w8a16": eight, "again": eight}
    rows = curves.frame(results).groupby("configuration", sort=False).head(1).reset_index(drop=True)
    analyses = {name: one.analysis for name, one in results.items()}
    low, value, high = quantization.ratios(rows, "decode_time_s", np.array([0, 0, 1]), analyses)
    assert value[:2] == pytest.approx([1.0, rows["decode_time_s"][1] / rows["decode_time_s"][0]])
    assert np.isnan([low[0], high[0]]).all() and low[1] < value[1] < high[1]
    assert (low[2], value[2], high[2]) == pytest.approx((1.0, 1.0, 1.0))
    wider = quantization.ratios(rows, "decode_time_s", np.array([0, 0, 1]), {})
    assert wider[0][2] < 0.9 and wider[2][2] > 1.1  # without the runs, errors are taken to be independent
    figure = quantization.draw(rows.head(2), HALF, analyses)
    assert [axes.get_ylabel().split("\n")[-1] for axes in figure.axes[:2]] == ["(× none)"] * 2


def test_long_names_of_bars_are_upright_and_do_not_touch() -> None:
    """Every second name stands a line lower, where names side by side would overlap."""
    rows = pd.DataFrame({"name": ["A: a100-80gb-sxm", "bandwidth", "kernels", "peak", "vector units", "B: h100-sxm"]})
    found = rows.assign(start=0.0, change=1.0)
    figure = waterfall.draw_steps(found, HALF, "", efficiency=set())
    figure.canvas.draw()
    labels = figure.axes[0].get_xticklabels()
    assert {label.get_rotation() for label in labels} == {0.0}
    boxes = [label.get_window_extent() for label in labels]
    assert all(left.x1 < right.x0 for one in (boxes[::2], boxes[1::2]) for left, right in pairwise(one))


# bars by chip


def test_bars_of_several_chips_are_grouped_by_quantization_and_coloured_by_chip() -> None:
    """Two chips times two formats: two groups with a bar per chip each, and no two bars overlap."""
    results = {
        f"{chip}, {name}": answer(chip, quantization=value)
        for chip in ("a6000", "h100-sxm")
        for name, value in (("quantization none", "none"), ("w8a16", "w8a16"))
    }
    rows = curves.frame({name: [one] for name, one in results.items()}).groupby("configuration", sort=False).head(1)
    at = quantization.places(rows)
    assert (at.groups, at.chips) == (["none", "w8a16"], ["a6000", "h100-sxm"])
    assert [round(x) for x in at.x] == [0, 1, 0, 1]
    assert all(b - a > at.width for a, b in pairwise(sorted(at.x)))
    figure = quantization.draw(rows, HALF)
    assert {"a6000", "h100-sxm"} <= set(key(figure))
    faces = [bar.get_facecolor()[:3] for bar in figure.axes[0].patches]
    assert faces[0] == faces[1] != faces[2] == faces[3]


def test_crowded_panels_stand_below_each_other_and_name_their_bars_once() -> None:
    rows = curves.frame(
        {f"a6000, w{at}": answer() for at in range(5)} | {f"h100, w{at}": answer("h100-sxm") for at in range(5)}
    )
    figure = quantization.draw(rows.groupby("configuration", sort=False).head(1), HALF)
    assert figure.axes[0].get_subplotspec().get_gridspec().ncols == 1
    shown = [axes.xaxis.get_tick_params()["labelbottom"] for axes in figure.axes]
    assert shown == [False, False, True]


def test_chips_that_differ_in_nothing_else_have_a_bar_each(calibrated: Result) -> None:
    rows = curves.frame({"a6000": calibrated, "h100-sxm": answer("h100-sxm")})
    at = quantization.places(rows.groupby("configuration", sort=False).head(1))
    assert (at.groups, at.chips) == (["a6000", "h100-sxm"], [])


# the target of the bandwidth plot, and its ticks


def over_bandwidth() -> pd.DataFrame:
    """Two chips: 100 ms at 100 GB/s and half of that at each doubling, and one that stops at 40 ms."""
    rates = np.array([100e9, 200e9, 400e9, 800e9])
    slow = np.array([0.1, 0.05, 0.04, 0.04])
    both = {"a": 10.0 / rates * 1e9, "b": slow}
    frames = [
        pd.DataFrame(
            {"configuration": name, "bandwidth_bytes_per_s": rates, "decode_time_s": times, "prefill_time_s": 0.2,
             "fits": True, "model": "m", "hardware": "x"}
        )
        for name, times in both.items()
    ]  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def test_a_target_is_reached_at_the_interpolated_bandwidth() -> None:
    """10 GB in 20 ms need 500 GB/s; the other chip never takes 20 ms, and reaches 50 ms at 200 GB/s."""
    rows = over_bandwidth()
    assert bandwidth.reached(rows, 0.02) == {"a": pytest.approx(500e9)}
    assert bandwidth.reached(rows, 0.05) == {"a": pytest.approx(200e9), "b": pytest.approx(200e9)}
    assert bandwidth.reached(rows, 1.0) == {}  # every bandwidth is enough
    figure = bandwidth.draw(rows, HALF, target_s=0.02)
    assert "target of 20 ms" in key(figure)
    levels = [line.get_ydata()[0] for line in figure.axes[1].lines if len(set(line.get_ydata())) == 1]
    assert 20.0 in levels
    assert "500 GB/s" in [text.get_text() for text in figure.axes[1].texts]


def test_a_target_beyond_all_times_is_still_on_the_axis() -> None:
    axes = bandwidth.draw(over_bandwidth(), HALF, target_s=1e-3).axes[1]
    assert axes.get_ylim()[0] < 1.0 < axes.get_ylim()[1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ratio", [9.0, 32.0, 170.0, 1000.0])
def test_ticks_of_bandwidths_do_not_collide(size: str, ratio: float) -> None:
    rows = over_bandwidth()
    rows["bandwidth_bytes_per_s"] = np.tile(np.geomspace(123.4e9, 123.4e9 * ratio, 4), 2)
    figure = bandwidth.draw(rows, Style(size=SIZES[size]))
    figure.canvas.draw()
    for axes in figure.axes:
        low, high = axes.get_xlim()
        labels = axes.get_xticklabels()
        at = axes.get_xticks()
        boxes = [label.get_window_extent() for label, x in zip(labels, at, strict=True) if low <= x <= high]
        assert len(boxes) >= 2
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_ties_of_a_crossover_are_pale_and_in_lower_case() -> None:
    """Two names of one chip tie at every point that fits."""
    found = lv.crossover("llama-2-7b", ["h100", "h100-sxm"], batch_size=[1, 2], context=[128, 512])
    figure = lv.plot("crossover", found)
    assert {text.get_text() for text in figure.axes[0].texts} == {"a"}
    assert "pale: 80 % intervals overlap" in {text.get_text() for text in figure.legends[0].get_texts()}
