"""Plots, tested by structure: roofs, markers, texts, limits; never by pixels."""

from __future__ import annotations

import pickle
from functools import cache
from importlib import import_module
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from llmviewer import api
from llmviewer.cli import main
from llmviewer.core.workload import Request
from llmviewer.language.quantity import LATENCIES
from llmviewer.reports.plots import (
    KINDS,
    PlotData,
    bandwidth,
    bars,
    curves,
    latency,
    ledger,
    memory,
    operators,
    pareto,
    parity,
    roofline,
    ticks,
    waterfall,
)
from llmviewer.reports.plots.style import SIZES, THEMES, Style
from llmviewer.result.crossover import crossover
from llmviewer.result.result import Result
from llmviewer.techniques.registry import TECHNIQUES

ROOT = Path(__file__).resolve().parent.parent
HALF = Style(size=SIZES["paper"])
DENSE = ("llama-3.2-1b", "a6000")
#: kind of configuration -> model, chip, options.
RUN = {
    "dense": (*DENSE, {}),
    "moe": ("qwen3-30b-a3b", "h100-sxm", {}),
    "latent attention": ("deepseek-v2-lite", "h100-sxm", {}),
    "hybrid": ("qwen3-next-80b-a3b", "b200", {}),
    "recurrent": ("mamba-2.8b", "a6000", {}),
    "calibrated": (*DENSE, {"efficiency": "calibrated"}),
    "engine": (*DENSE, {"efficiency": "calibrated", "engine": "vllm"}),
    "continuous": (*DENSE, {"efficiency": "calibrated", "engine": "vllm", "batching": "continuous"}),
    "speculative": (*DENSE, {"speculative": "draft=tinyllama-1.1b,tokens=4,acceptance=0.7"}),
    "offload": ("llama-2-13b", "rtx-4090", {"offload": "weights=1"}),
    "tensor parallel": ("llama-2-70b", "h100-sxm", {"tensor_parallel_size": "4"}),
    "pipeline": ("llama-2-70b", "h100-sxm", {"pipeline_parallel_size": "4"}),
    "does not fit": ("llama-2-70b", "a6000", {}),
    "no L2, no vector rate": ("llama-2-7b", "groq-lpu", {}),
}


@cache
def result(name: str, points: bool = False) -> Result:  # noqa: FBT001, FBT002
    model, chip, options = RUN[name]
    batch = np.array([1.0, 8.0, 64.0]) if points else np.ones(1)
    request = Request(batch_size=batch, input_len=np.full(len(batch), 512.0), output_len=np.full(len(batch), 16.0))
    return api.configuration(model, chip, **{"efficiency": "ideal", **options}).answer(request)


def module(kind: str):
    return import_module(f"llmviewer.reports.plots.{KINDS[kind].module}")


def plots_of_results() -> list[str]:
    return [name for name, kind in KINDS.items() if kind.data in (PlotData.POINT, PlotData.CURVE)]


def words(figure) -> list[str]:
    """All texts of a figure."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def key(figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


# texts


def test_a_title_lists_only_active_techniques() -> None:
    """Results of four chips must not look like those of one."""
    title = latency.picture({"a": result("tensor parallel", points=True)}, HALF).get_suptitle().replace("\n", " ")
    assert title == "llama-2-70b on h100-sxm, tensor parallel size 4, input 512, output 16, ideal"


def test_a_single_hollow_curve_has_a_legend() -> None:
    figure = latency.picture({"a": result("does not fit", points=True)}, HALF)
    assert key(figure) == ["does not fit in memory"]


def test_the_legend_explains_the_rings_of_real_bandwidths() -> None:
    assert "bandwidth of the real chip" in key(bandwidth.picture({"a": result("dense")}, HALF))


def test_ticks_have_no_offset_exponent() -> None:
    assert [ticks.plain(value) for value in (1e6, 0.1 + 0.2, 2048.0)] == ["1,000,000", "0.3", "2,048"]


# every plot with every kind of result


@pytest.mark.parametrize("kind", plots_of_results())
@pytest.mark.parametrize("name", RUN)
def test_every_plot_draws_every_kind_of_result(kind: str, name: str) -> None:
    curve = KINDS[kind].data is PlotData.CURVE and kind != "bandwidth"
    results = {name: result(name, curve)}
    if KINDS[kind].fewest == 2:
        results = {"dense": result("dense"), name + " ": result(name)}
    figure = module(kind).picture(results, HALF)
    assert all(axes.get_xlabel() or axes.get_xticklabels() for axes in figure.axes if axes.get_visible())
    assert all(axes.get_ylabel() for axes in figure.axes if axes.get_visible())


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_every_size_and_theme_has_the_stated_width(theme: str, size: str, tmp_path: Path) -> None:
    style = Style(theme=THEMES[theme], size=SIZES[size])
    figure = roofline.picture({"dense": result("dense")}, style)
    assert figure.get_figwidth() == SIZES[size].width
    assert figure.get_facecolor()[:3] == pytest.approx(
        [int(THEMES[theme].paper[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    )


# the roofline


def test_roofline_has_a_roof_for_every_unit_and_memory_that_is_published() -> None:
    """The A100's sheet: device memory and L2; tensor tf32, bf16 and fp16 together, int8, int4 ...; the ridge."""
    one = api.analyze("llama-2-7b", "a100-80gb-sxm")
    message = words(roofline.picture({"a": one}, Style(size=SIZES["slide"]), all_roofs=True))
    for _, roof in one.roofs().iterrows():
        if not roof["what"].endswith("fp64"):
            assert any(text.startswith(roof["what"]) for text in message), roof["what"]
    assert "ridge 153 FLOP/B" in message  # 312e12 / 2.039e12
    assert {"memory-bound", "compute-bound"} <= set(message)


def test_roofs_that_bound_no_operator_are_left_out() -> None:
    """Llama in bf16 multiplies in bf16 alone, w8a8 in int8 and, in attention, in bf16; L2 bounds nothing here."""
    plain, eight = (api.analyze("llama-2-7b", "a100-80gb-sxm", quantization=name) for name in ("none", "w8a8"))
    assert list(roofline.roofs({"a": plain}, unused=False)["what"]) == ["tensor bf16, fp16", "device memory"]
    assert {"tensor int8", "tensor bf16, fp16"} < set(roofline.roofs({"a": eight}, unused=False)["what"])


def test_every_operator_on_the_roofline_has_its_whole_name() -> None:
    """No `q_proj +3`: names of one spot stand below each other."""
    one = result("calibrated")
    named = [name for text in words(roofline.picture({"a": one}, Style())) for name in text.split("\n")]
    rows = roofline.frame({"a": one}).query("share > 0.1")
    assert set(rows["name"]) <= set(named)
    assert not [text for text in named if "+" in text or "proj, " in text]


@pytest.mark.parametrize("size", SIZES)
def test_no_line_to_a_name_crosses_the_roof(size: str) -> None:
    (axes,) = roofline.picture({"a": result("calibrated")}, Style(size=SIZES[size])).axes
    one = result("calibrated").to_dict()["roofline"]
    led = [text for text in axes.texts if getattr(text, "arrow_patch", None) is not None]
    for text in led:  # a straight line between two points below the roof, which is concave, stays below it
        box = text.get_window_extent(axes.figure.canvas.get_renderer())
        x, y = axes.transData.inverted().transform(((box.x0 + box.x1) / 2.0, (box.y0 + box.y1) / 2.0))
        assert y < min(x * one["bandwidth_bytes_per_s"], one["peak_flops_per_s"]), text.get_text()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chips", [("a6000",), ("a100-80gb-sxm", "h100-sxm"), ("a6000", "h100-sxm", "mi300x")])
def test_labels_of_a_roofline_do_not_overlap(size: str, chips: tuple[str, ...]) -> None:
    results = {chip: api.analyze("llama-3.1-8b", chip, batch_size=16) for chip in chips}
    figure = roofline.picture(results, Style(size=SIZES[size]))
    (axes,) = figure.axes
    renderer = figure.canvas.get_renderer()
    flat = [text for text in axes.texts if text.get_rotation() % 90 == 0]
    from matplotlib.text import Text

    boxes = {text.get_text() + str(at): Text.get_window_extent(text, renderer) for at, text in enumerate(flat)}
    for (one, box), (other, mixed) in combinations(boxes.items(), 2):
        assert not box.overlaps(mixed), (one, other)
    inside = axes.get_window_extent().padded(4.0)
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes.values())


def test_roofline_has_a_marker_for_every_operator_of_both_stages() -> None:
    one = result("dense")
    figure = roofline.picture({"a": one}, HALF)
    drawn = sum(len(found.get_offsets()) for found in figure.axes[0].collections if found.get_label() == "bound")
    expected = one.operators.query("flops > 0 and arithmetic_intensity > 0")
    assert drawn == len(expected)


def test_no_operator_is_above_its_roof() -> None:
    rows = roofline.frame({"a": result("dense")})
    one = result("dense").to_dict()["hardware"]
    assert (rows["performance"] <= rows["arithmetic_intensity"] * one["bandwidth_bytes_per_s"] * (1 + 1e-9)).all()


def test_measured_points_are_at_their_own_rate_and_joined_to_the_prediction() -> None:
    """An operator that was measured at twice its predicted time has half its performance."""
    rows = roofline.frame({"a": result("dense")})
    measured = rows[["stage", "name", "time_s"]].assign(time_s=2.0 * rows["time_s"]).query("name == 'q_proj'")
    joined = roofline.joined(rows, measured)
    known = joined[joined["measured"].notna()]
    assert list(known["name"]) == ["q_proj", "q_proj"]
    assert known["measured"].to_numpy() == pytest.approx(known["performance"].to_numpy() / 2.0)
    figure = roofline.picture({"a": result("dense")}, HALF, measured)
    assert "measured" in key(figure)


# curves


def test_every_configuration_has_a_curve_and_a_legend_entry() -> None:
    results = {name: result(name, points=True) for name in ("dense", "calibrated")}
    figure = module("latency").picture(results, HALF)
    assert [axes.get_ylabel().split()[0] for axes in figure.axes] == ["TTFT", "TPOT"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
    assert key(figure) == ["dense", "calibrated", "80 % interval"]
    assert [len(axes.collections) for axes in figure.axes] == [1, 1]  # the band of the calibrated one


def test_points_that_do_not_fit_are_hollow_and_explained_in_the_legend() -> None:
    figure = module("throughput").picture({"a": result("does not fit", points=True)}, HALF)
    assert not result("does not fit", points=True).fits
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == HALF.theme.paper]
    assert [len(line.get_xdata()) for line in hollow] == [3]
    assert key(figure)[0] == "does not fit in memory"


def test_time_units_match_the_values() -> None:
    rows = pd.DataFrame({"a": [2e-3, 4.0], "b": [3.0, 4.0], "c": [4e-6, 1e-3]})
    assert [curves.of_time(rows, "", name, "").unit for name in "abc"] == ["ms", "s", "µs"]


def test_hypothetical_chips_differ_only_in_bandwidth(tmp_path: Path) -> None:
    """Twice the bandwidth halves a memory-bound decode step."""
    from llmviewer.cli.plot import given

    sizes = {"batch_size": "", "input_len": "", "output_len": "", "bandwidth": "384,768"}
    options = {"dtype": "auto", "efficiency": "ideal", **{name: option.default for name, option in TECHNIQUES.items()}}
    requested = given.PlotRequest(
        kind=KINDS["bandwidth"], model="llama-2-7b", hardware="a6000", sizes=sizes, metric="", options=options
    )
    (found,) = given.load_data(requested).data["llama-2-7b on a6000"]
    rows = found.to_frame()
    assert list(rows["bandwidth_bytes_per_s"]) == [384e9, 768e9]
    assert rows["decode_time_s"][0] == pytest.approx(2.0 * rows["decode_time_s"][1], rel=0.01)


def test_one_output_token_has_no_tpot() -> None:
    single = api.analyze(*DENSE, batch_size=[1, 2], output_len=1)
    assert [axes.get_ylabel() for axes in module("latency").picture({"a": single}, HALF).axes] == ["TTFT (ms)"]


# bars


def test_stacked_memory_adds_up_to_the_total_below_its_capacity() -> None:
    rows = curves.frame({"a": result("dense", points=True)})
    stacked = memory.parts(rows)
    total = sum(part.sizes for part in stacked) * memory.GIB
    assert total == pytest.approx(rows["total_bytes"].to_numpy())
    figure = memory.draw(rows, HALF)
    levels = [line.get_ydata()[0] * memory.GIB for line in figure.axes[0].lines]
    assert levels == pytest.approx([rows["capacity_bytes"][0], rows["budget_bytes"][0]])


@pytest.mark.parametrize("name", RUN)
def test_stacked_operators_add_up_to_the_stage(name: str) -> None:
    rows = operators.frame({"a": result(name)})
    for stage in ("prefill", "decode"):
        spent = rows.loc[rows["stage"] == stage, "time_s"].sum()
        assert spent == pytest.approx(result(name).stage(stage)["time_s"], rel=1e-9)


def test_small_parts_are_merged_into_one() -> None:
    table = pd.DataFrame({f"p{at}": [float(at + 1)] for at in range(10)})
    found = bars.parts(table, 4)
    assert [part.name for part in found] == ["p9", "p8", "p7", bars.OTHER]
    assert found[-1].sizes[0] == sum(range(1, 8))
    assert len({part.number for part in found}) == 4


@pytest.mark.parametrize("metric", LATENCIES)
@pytest.mark.parametrize("name", RUN)
def test_a_waterfall_adds_up_from_one_configuration_to_the_other(name: str, metric: str) -> None:
    first, second = result("dense"), result(name)
    found = waterfall.steps(waterfall.frame({"a": first, "b": second}, metric))
    assert found["change"].iloc[0] == pytest.approx(first.metrics()[metric], rel=1e-12)
    assert found["change"].iloc[-1] == pytest.approx(second.metrics()[metric], rel=1e-12)
    assert found["change"].iloc[:-1].sum() == pytest.approx(second.metrics()[metric], rel=1e-9)


def test_the_value_above_the_first_waterfall_bar_does_not_touch_the_title() -> None:
    axes = waterfall.picture({"a": result("moe"), "b": result("dense")}, HALF).axes[0]
    top = max(bar.get_y() + bar.get_height() for bar in axes.patches)
    assert axes.get_ylim()[0] == 0.0
    assert axes.get_ylim()[1] > 1.05 * top


def test_a_waterfall_without_changes_has_no_steps() -> None:
    found = waterfall.steps(waterfall.frame({"a": result("dense"), "b": result("dense")}))
    assert list(found["name"]) == ["a", "b"]


def test_halved_weights_halve_only_the_projections() -> None:
    """w8a16 reads half the bytes of linear layers; attention and lm_head stay."""
    rows = waterfall.frame(
        {
            "a": result("dense"),
            "b": api.analyze(*DENSE, input_len=512, output_len=16, quantization="w8a16", efficiency="ideal"),
        }
    )
    table = rows.pivot(index="group", columns="configuration", values="seconds")
    assert table.loc["feed-forward", "b"] < 0.55 * table.loc["feed-forward", "a"]
    assert table.loc["lm_head", "b"] == pytest.approx(table.loc["lm_head", "a"])


# Pareto, crossover


def test_no_point_dominates_the_pareto_frontier() -> None:
    rows = curves.frame({name: result(name, points=True) for name in ("dense", "moe", "engine")})
    best = pareto.frontier(rows)
    assert best[pareto.USER].is_monotonic_decreasing
    assert best[pareto.DEVICE].is_monotonic_increasing
    for _, point in best.iterrows():
        assert not (
            (rows[pareto.USER] > point[pareto.USER]) & (rows[pareto.DEVICE] > point[pareto.DEVICE]) & rows["fits"]
        ).any()


def test_a_map_has_a_cell_for_every_batch_and_context() -> None:
    configurations = {
        name: api.configuration(*DENSE, quantization=name, efficiency="ideal") for name in ("w8a8", "w4a16")
    }
    found = crossover(configurations, np.array([1.0, 256.0]), np.array([512.0, 1024.0, 1e6]), "ttft_s")
    figure = module("crossover").picture(found, HALF)
    assert figure.axes[0].images[0].get_array().shape == (3, 2)
    letters = [text for text in words(figure) if text]
    assert len(letters) == int((found.winner >= 0).sum())
    assert [label[0] for label in key(figure)][: len(set(letters))] == sorted(set(letters))


# predicted against measured


def validated() -> pd.DataFrame:
    """Four rows: exact, 10 % slow, 50 % fast, and one without a prediction."""
    return pd.DataFrame(
        {
            "kernel": ["a", "a", "b", "b"],
            "latency_us": [10.0, 10.0, 10.0, 10.0],
            "predicted_us": [10.0, 11.0, 5.0, np.nan],
            "low80_us": [8.0, 9.0, 4.0, np.nan],
            "high80_us": [12.0, 13.0, 6.0, np.nan],
        }
    )


def test_parity_counts_errors_and_intervals_of_predicted_rows() -> None:
    rows = parity.frame(validated())
    assert parity.title(rows) == "3 rows: mean error 20.0%, 67% inside the 80 % interval"
    figure = parity.draw(rows, HALF)
    assert [axes.get_ylabel() for axes in figure.axes] == ["Predicted (µs)", "Predicted / measured"]
    assert key(figure)[:2] == ["a", "b"]


def ledger_rows() -> pd.DataFrame:
    table = pd.DataFrame(
        {
            "source": ["x", "x"], "metric": ["decode_tok_s", "ttft_ms"], "published": [10.0, 10.0],
            "predicted": [20.0, 20.0], "low80": [5.0, 5.0], "high80": [15.0, 15.0],
        }
    )  # fmt: skip
    return ledger.frame(table)


def test_the_ledger_converts_rates_to_times() -> None:
    """Twice the published tokens per second is half the published time."""
    assert list(ledger_rows()["ratio"]) == [0.5, 2.0]
    figure = ledger.draw(ledger_rows(), HALF)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["x"]


# the command


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_plot_writes_every_format(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{ending}"
    assert main(["plot", "roofline", *DENSE[:1], "--hardware", DENSE[1], "-o", str(path)]) == 0
    assert path.read_bytes().lstrip()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_plot_list_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(KINDS)


WRONG = [
    ("roofing llama-2-7b --hardware a6000", "did you mean 'roofline'"),
    ("roofline llama-2-7b --hardware a6000 --theme sepia", "theme"),
    ("roofline llama-2-7b --hardware a6000 --style huge", "style"),
    ("roofline llama-2-7b --hardware a6000 -o x.gif", ".png, .svg, .pdf"),
    ("roofline llama-2-7b --hardware a6000 -o missing/x.png", "cannot write"),
    ("roofline llama-2-7b", "--hardware"),
    ("roofline --hardware a6000", "a model"),
    ("roofline llama-2-7b --hardware a6000 --batch-size 1,2", "takes one"),
    ("roofline llama-2-7b --hardware a6000 --measured missing.csv", "no file"),
    ("latency llama-2-7b --hardware a6000 --measured x.csv", "does not take it"),
    ("latency llama-2-7b --hardware a6000 --batch-size 1,2 --input-len 1,2", "may be a list"),
    ("latency llama-2-7b --hardware a6000 --batch-size ''", "missing"),
    ("latency llama-2-7b --hardware a6000 --batch-size 8:1", "ends before it begins"),
    ("latency llama-2-7b --hardware a6000 --bandwidth 100", "does not take it"),
    ("latency llama-2-7b --hardware a6000 --metric e2e_s", "does not take it"),
    (
        "latency llama-2-7b --hardware a6000 -tp 1,2 --quantization none,w8a16,w8a8,w4a16,w4a8,w4a4,w3a16,w2a16",
        "configurations",
    ),
    ("bandwidth llama-2-7b --hardware a6000 --bandwidth fast", "bandwidth"),
    ("bandwidth llama-2-7b --hardware a6000 --target soon", "target is 'soon'; allowed: a time such as"),
    ("bandwidth llama-2-7b --hardware a6000 --target nan", "target is 'nan'"),
    ("bandwidth llama-2-7b --hardware a6000 --target -5", "target is '-5'"),
    ("latency llama-2-7b --hardware a6000 --target 50ms", "does not take it"),
    ("waterfall llama-2-7b --hardware a6000", "this plot takes 2"),
    ("waterfall llama-2-7b --hardware a6000 --quantization none,w8a8 --metric e3e", "metric"),
    ("waterfall llama-2-7b --hardware a6000,h100-sxm --output-len 1", "tpot_s is undefined for one output token"),
    ("roofline llama-2-7b --hardware a6000 --measured words.csv", "no row of --measured has a time_s above 0"),
    ("roofline llama-2-7b --hardware a6000 --measured negative.csv", "no row of --measured has a time_s above 0"),
    ("roofline llama-2-7b --hardware a6000 --measured other.csv", "matches an operator"),
    ("crossover llama-2-7b --hardware a6000", "2 to 14"),
    ("parity", "needs a benchmark's file"),
    ("parity missing.csv", "no file"),
    ("parity wrong.csv", "is not a file written by"),
    ("ledger wrong.csv", "no column"),
]


#: Invalid tables.
FILES = {
    "wrong.csv": "a,b\n1,2\n",
    "words.csv": "stage,name,time_s\nprefill,q_proj,soon\n",
    "negative.csv": "stage,name,time_s\nprefill,q_proj,-1.0\n",
    "other.csv": "stage,name,time_s\nprefill,nothing,1e-3\n",
}


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line[:60] for line, _ in WRONG])
def test_wrong_input_is_one_line_and_writes_nothing(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import shlex

    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(content, encoding="utf-8")
    if "''" in line:
        line = line.replace("''", ",")
    assert main(["plot", *shlex.split(line)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert {entry.name for entry in tmp_path.iterdir()} == set(FILES)


def test_measurements_of_other_operators_are_omitted_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, path = tmp_path / "rows.csv", str(tmp_path / "x.svg")
    rows.write_text("stage,name,time_s\nprefill,q_proj,1e-3\nprefill,nothing,1e-3\n", encoding="utf-8")
    assert main(["plot", "roofline", DENSE[0], "--hardware", DENSE[1], "--measured", str(rows), "-o", path]) == 0
    assert "1 of 2 measured rows match no operator and are left out: 'prefill nothing'" in capsys.readouterr().err


def test_duplicate_configurations_are_merged(tmp_path: Path) -> None:
    path = str(tmp_path / "x.png")
    assert main(["plot", "roofline", DENSE[0], "--hardware", "a6000,a6000", "-o", path]) == 0


def test_a_policy_that_places_tensors_per_point_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    words = "throughput llama-2-13b --hardware rtx-4090 --offload flexgen --batch-size 1,4 --output-len 4"
    assert main(["plot", *words.split(), "-o", str(path)]) == 0


@pytest.mark.parametrize("kind", ["roofline", "latency", "operators"])
def test_a_name_with_dollar_signs_is_not_a_formula(kind: str, tmp_path: Path) -> None:
    sheet = (ROOT / "hardware_specs" / "a6000.yaml").read_text(encoding="utf-8")
    chip = tmp_path / "mine.yaml"
    chip.write_text(f"name: 'x$\\frac{{$<b>'\n{sheet.partition(chr(10))[2]}", encoding="utf-8")
    picture = tmp_path / "x.svg"
    assert main(["plot", kind, DENSE[0], "--hardware", str(chip), "-o", str(picture)]) == 0
    assert "<b>" not in picture.read_text(encoding="utf-8")


def test_every_kind_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "reference" / "plots.md").read_text(encoding="utf-8")
    for name, kind in KINDS.items():
        assert f"## {name}\n" in page
        assert f"llmviewer plot {name} {kind.example}".strip() in page
        assert f"images/{name}.png" in page
        assert (ROOT / "docs" / "images" / f"{name}.png").stat().st_size < 100e3


def assert_pickled(figure: Figure, folder: Path) -> None:
    """A figure can reach another process, and its copy writes TrueType fonts as the figure does."""
    copy = pickle.loads(pickle.dumps(figure))
    assert type(copy) is type(figure) and len(copy.axes) == len(figure.axes)
    copy.savefig(folder / "copy.pdf")
    assert b"/Type3" not in (folder / "copy.pdf").read_bytes()


@pytest.mark.parametrize("kind", plots_of_results())
def test_a_figure_can_be_pickled(kind: str, tmp_path: Path) -> None:
    curve = KINDS[kind].data is PlotData.CURVE and kind != "bandwidth"
    names = ("dense", "calibrated")[: KINDS[kind].fewest]
    assert_pickled(module(kind).picture({name: result(name, curve) for name in names}, HALF), tmp_path)


def test_figures_of_maps_and_tables_can_be_pickled(tmp_path: Path) -> None:
    one = {name: api.configuration(*DENSE, quantization=name, efficiency="ideal") for name in ("w8a8", "w4a16")}
    assert_pickled(module("crossover").picture(crossover(one, np.ones(1), np.full(1, 512.0), "ttft_s"), HALF), tmp_path)
    assert_pickled(parity.draw(parity.frame(validated()), HALF), tmp_path)
    assert_pickled(ledger.draw(ledger_rows(), HALF), tmp_path)
