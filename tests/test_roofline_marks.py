"""Marks of the roofline: filled at what operators attain, hollow at their bound, joined; labels that stay legible."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from llmviewer import api
from llmviewer.reports.plots import roofline, ticks
from llmviewer.reports.plots.style import SIZES, Style
from llmviewer.result.result import Result

HALF = Style(size=SIZES["paper"])


@cache
def one(chip: str = "a6000", efficiency: str = "calibrated", **options: str) -> Result:
    return api.analyze("llama-3.2-1b", chip, input_len=512, efficiency=efficiency, **options)


def points(figure, label: str) -> np.ndarray:
    """Sorted positions of all marks of one sort."""
    found = [marks.get_offsets() for marks in figure.axes[0].collections if marks.get_label() == label]
    return np.array(sorted(map(tuple, np.concatenate(found).tolist())) if found else [])


def expected(result: Result, time: str) -> np.ndarray:
    rows = result.operators.query("flops > 0 and arithmetic_intensity > 0")
    return np.array(sorted(zip(rows["arithmetic_intensity"], rows["flops"] / rows[time], strict=True)))


def key(figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_operators_stand_at_what_they_attain_and_their_bounds_are_hollow() -> None:
    """An operator of 1 GFLOP that takes 2 ms and could take 1 ms: 0.5 TFLOP/s, hollow at 1 TFLOP/s, joined."""
    figure = roofline.picture({"a": one()}, HALF)
    assert points(figure, "attained") == pytest.approx(expected(one(), "time_s"))
    assert points(figure, "bound") == pytest.approx(expected(one(), "ideal_time_s"))
    hollow = [marks for marks in figure.axes[0].collections if marks.get_label() == "bound"]
    for marks in hollow:
        assert np.allclose(marks.get_facecolor()[:, :3], 1.0)  # the paper's white
    joined = sorted(
        (float(x), float(y))
        for lines in figure.axes[0].collections
        if hasattr(lines, "get_segments")
        for (x, y) in (segment[1] for segment in lines.get_segments())
    )
    assert np.array(joined) == pytest.approx(expected(one(), "ideal_time_s"))
    assert key(figure)[-3:] == ["prefill", "decode", "bound"]


def test_ideal_times_have_the_mark_of_the_bound_only() -> None:
    result = one(efficiency="ideal")
    figure = roofline.picture({"a": result}, HALF)
    assert len(points(figure, "attained")) == 0
    assert points(figure, "bound") == pytest.approx(expected(result, "ideal_time_s"))
    assert key(figure)[-2:] == ["prefill (bound)", "decode (bound)"]


def test_ideal_and_calibrated_configurations_stand_side_by_side() -> None:
    figure = roofline.picture({"ideal": one(efficiency="ideal"), "calibrated": one()}, HALF)
    assert len(points(figure, "attained")) == len(expected(one(), "time_s"))
    assert len(points(figure, "bound")) == 2 * len(expected(one(), "time_s"))


def test_the_title_names_model_chip_stages_techniques_and_efficiency() -> None:
    words = roofline.picture({"a": one(quantization="w8a16")}, HALF).get_suptitle().replace("\n", " ")
    assert words == (
        "llama-3.2-1b on a6000: prefill and decode step, w8a16, batch 1, input 512, output 128, calibrated kernels"
    )
    both = roofline.title({"a": one(), "b": one("h100-sxm")})
    assert both.startswith("llama-3.2-1b on a6000, h100-sxm: prefill and decode step, ")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chips", [("a6000",), ("a6000", "h100-sxm", "mi300x")])
def test_no_leader_line_strikes_through_a_label(size: str, chips: tuple[str, ...]) -> None:
    from matplotlib.text import Text

    figure = roofline.picture({chip: one(chip) for chip in chips}, Style(size=SIZES[size]))
    (axes,) = figure.axes
    renderer = figure.canvas.get_renderer()
    boxes = {text: Text.get_window_extent(text, renderer) for text in axes.texts if text.get_rotation() % 90 == 0}
    led = [text for text in boxes if getattr(text, "arrow_patch", None) is not None]
    if len(chips) == 3:
        assert led
    for text in led:
        start = boxes[text].get_points().mean(axis=0)
        stop = axes.transData.transform(text.xy)
        for at in np.linspace(0.0, 1.0, 400):
            x, y = start + at * (stop - start)
            struck = [other.get_text() for other, box in boxes.items() if other is not text and box.contains(x, y)]
            assert not struck, (text.get_text(), struck)


def test_a_label_whose_leader_would_cross_words_is_moved_or_left_out() -> None:
    """The point is ringed by words close to it, so that every longer line would cross them."""
    figure, (axes,) = Style().figure()
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    Style().settle(figure)
    space = ticks.Space(axes=axes)
    around = [(0.5 + 0.07 * np.cos(at), 0.5 + 0.09 * np.sin(at)) for at in np.linspace(0.0, 2.0 * np.pi, 25)]
    space.texts = np.concatenate([space.boxes(axes.text(x, y, "xx", ha="center", va="center")) for x, y in around])
    space.take(space.texts)
    lost = ticks.place(space, [ticks.Label(words="hidden", x=0.5, y=0.5, colour="k")], 9.0)
    assert lost == ["hidden"]


def test_a_text_is_kept_where_it_touches_no_reserved_square() -> None:
    """Two squares, of 2 x 3.6 and 2 x 7.2 points: a text on one of them is removed, the first between them stays."""
    figure, (axes,) = Style().figure()
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    Style().settle(figure)
    space = ticks.Space(axes=axes)
    space.take_points(np.array([[0.2, 0.2], [0.8, 0.8]]), np.array([3.6, 7.2]))  # 72 points are dpi pixels
    middle = axes.transData.transform([[0.2, 0.2], [0.8, 0.8]])
    half = np.array([[3.6], [7.2]]) / 72.0 * figure.dpi
    assert space.taken == pytest.approx(np.hstack([middle - half, middle + half]))
    assert not space.keep(axes.text(0.8, 0.8, "hidden", ha="center", va="center"))
    assert space.keep(axes.text(0.5, 0.5, "seen", ha="center", va="center"))
    assert not space.keep(axes.text(0.5, 0.5, "second", ha="center", va="center"))
    assert [text.get_text() for text in axes.texts] == ["seen"] and len(space.taken) == 3
