"""Hypothetical chips, elasticities, and the least figures that meet a target."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.hardware.hypothetical import alternatives, figure_of, quantity, told, unit_of
from llmviewer.hardware.hypothetical import settings as changes
from llmviewer.planning.elasticity import elasticity
from llmviewer.planning.require import require
from llmviewer.timing import engine
from tests.answers import chip_for, refusal

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "mamba-2.8b")
CHIPS = ("h100-sxm", "a100-80gb-sxm", "mi300x", "l40s", "rtx-4090")


def _analyzed(model: str, chip: str, **options: Any) -> dict[str, Any]:
    return lv.analyze(model, chip, **options).to_dict()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("bandwidth", "6TB/s", 6e12),
        ("bandwidth", "900 GB/s", 9e11),
        ("capacity", "192GiB", 192 * 2.0**30),
        ("capacity", "80GB", 8e10),
        ("peak.fp8", "3PFLOP/s", 3e15),
        ("peak.bf16", "989.4TFLOPS", 9.894e14),
        ("power", "1kW", 1e3),
        ("units", "132", 132.0),
    ],
)
def test_quantities_are_in_si_units(name: str, text: str, value: float) -> None:
    assert quantity(name, text) == pytest.approx(value, rel=1e-15)


@given(value=st.floats(1e-1, 1e18), name=st.sampled_from(["bandwidth", "peak.fp8", "capacity", "units"]))
def test_a_value_that_is_told_reads_the_same(value: float, name: str) -> None:
    assert quantity(name, told(value, unit_of(name))) == pytest.approx(value, rel=1e-11)


def test_a_range_adds_or_multiplies_and_lists_combine() -> None:
    assert alternatives(["bandwidth=2TB/s:4TB/s:+1TB/s"]) == "bandwidth=2TB/s;bandwidth=3TB/s;bandwidth=4TB/s"
    assert alternatives(["bandwidth=1TB/s:4TB/s:*2", "l2=x1;x2"]).split(";")[:2] == [
        "bandwidth=1TB/s,l2=x1",
        "bandwidth=1TB/s,l2=x2",
    ]
    assert alternatives(["bandwidth=1TB/s,2TB/s,l2=x2"]) == "bandwidth=1TB/s,l2=x2;bandwidth=2TB/s,l2=x2"


def test_a_range_without_an_operator_is_told_its_form() -> None:
    with pytest.raises(UserError, match=r"a range is FIRST:LAST:\+STEP"):
        alternatives(["bandwidth=1TB/s:5TB/s:5"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foo=3", "unknown figure of a chip 'foo'"),
        ("bandwith=3TB/s", "did you mean 'bandwidth'"),
        ("bandwidth=3", "allowed: a value such as 6TB/s"),
        ("bandwidth=3GiB/s", "allowed: a value such as 6TB/s"),
        ("bandwidth", "allowed: FIGURE=VALUE"),
        ("peak.fp9=1TFLOP/s", "unknown dtype 'fp9'"),
        ("launch=2us", "a factor of the calibrated time"),
        ("bandwidth=x0", "a factor from"),
        ("bandwidth=x2,bandwidth=x3", "gives bandwidth twice"),
        ("capacity=-5GiB", "allowed: a value such as"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        changes(text)


@pytest.mark.parametrize("chip", CHIPS)
def test_setting_a_figure_to_its_own_value_changes_no_time(chip: str) -> None:
    own = figure_of(specs.load(chip), "bandwidth")
    assert own is not None
    setting = f"bandwidth={own / 1e9!r}GB/s"
    plain, same = (_analyzed("llama-3.1-8b", chip, **options) for options in ({}, {"set": setting}))
    for metric in ("ttft_s", "tpot_s"):
        assert same["metrics"][metric] == pytest.approx(plain["metrics"][metric], rel=1e-12)
    assert same["provenance"]["figures"]["bandwidth_bytes_per_s"]["source"] == "set by the user (--set)"
    assert any("hypothetical chip" in text for text in same["provenance"]["assumed"])


@settings(max_examples=20, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    chip=st.sampled_from(CHIPS),
    name=st.sampled_from(["bandwidth", "peak.bf16", "launch"]),
    factor=st.floats(1.05, 20.0),
)
def test_more_of_a_resource_never_takes_longer(model: str, chip: str, name: str, factor: float) -> None:
    less, more = (factor, 1.0) if name == "launch" else (1.0, factor)
    times = [_analyzed(model, chip, set=f"{name}=x{one!r}")["metrics"] for one in (less, more)]
    for metric in ("ttft_s", "tpot_s"):
        assert times[1][metric] <= times[0][metric] * (1.0 + 1e-9)


def test_a_format_that_the_chip_lacks_can_be_set() -> None:
    """An A100 has no fp8; with 1.2 PFLOP/s of it, w8a8 products compute in fp8."""
    found = _analyzed("llama-3.1-8b", "a100-80gb-sxm", set={"peak.fp8": "1.2PFLOP/s"}, quantization="fp8")
    assert found["hardware"]["peak_flops_per_s"]["fp8"] == 1.2e15
    dtypes = {row["name"]: row["compute_dtype"] for row in found["stages"]["prefill"]["operators"]}
    assert dtypes["gate_proj"] == "fp8"


def test_ideal_time_of_a_memory_bound_step_is_inverse_to_bandwidth() -> None:
    one, two = (
        _analyzed("llama-2-7b", "h100-sxm", efficiency="ideal", set=f"bandwidth=x{factor}")["metrics"]["tpot_s"]
        for factor in (1, 2)
    )
    assert one / two == pytest.approx(2.0, rel=1e-9)


def test_a_sweep_has_a_row_for_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    line = "sweep llama-3.2-1b --hardware h100 --set bandwidth=1TB/s:4TB/s:*2 --set capacity=80GiB;160GiB --format csv"
    assert main(shlex.split(line.replace(";", "\\;"))) == 0
    rows = csv.DictReader(capsys.readouterr().out.splitlines())
    assert len({row["set"] for row in rows}) == 6


@pytest.mark.parametrize("metric", ["ttft_s", "tpot_s", "e2e_s"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("chip", ["h100-sxm", "mi300x"])
def test_elasticities_of_the_roofline_add_up_to_one(model: str, chip: str, metric: str) -> None:
    found = elasticity(model, chip, metric=metric, efficiency="ideal", batch_size=4)
    assert sum(found.by_resource.values()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("model", "chip", "options"),
    [
        ("llama-3.1-8b", "h100-sxm", {"engine": "vllm", "batch_size": 16}),
        ("llama-3.1-70b", "h100-sxm", {"engine": "vllm", "batch_size": 16, "tensor_parallel_size": 4}),
        ("qwen3-30b-a3b", "h200", {"batch_size": 32}),
    ],
)
def test_elasticities_agree_with_wider_differences(model: str, chip: str, options: dict[str, Any]) -> None:
    """The change of the time with 1 % more and less of a resource, within 1 % of the time's elasticity."""
    found = elasticity(model, chip, **options)
    for name, share in found.by_resource.items():
        if name == "host" or share < 0.02:
            continue
        sides = (0.99, 1.01) if name not in ("launch", "latency") else (1.01, 0.99)
        low, high = (_analyzed(model, chip, set=f"{name}=x{side}", **options)["metrics"]["tpot_s"] for side in sides)
        slope = -(np.log(high) - np.log(low)) / (np.log(1.01) - np.log(0.99))
        assert slope == pytest.approx(share, abs=0.01)


def test_elasticity_of_a_host_is_its_share() -> None:
    with_engine = elasticity("llama-3.1-8b", "h100-sxm", engine="vllm")
    rows = lv.analyze("llama-3.1-8b", "h100-sxm", engine="vllm").attribution("tpot_s")
    share = rows[rows["kind"] == "engine"]["seconds"].sum() / rows["seconds"].sum()
    assert with_engine.by_resource["host"] == pytest.approx(share)
    assert "host" not in elasticity("llama-3.1-8b", "h100-sxm").by_resource


@pytest.mark.parametrize(
    ("vary", "target"),
    [
        ("bandwidth", {"tpot": "20ms"}),
        ("bandwidth", {"tokens_per_s": 60}),
        ("peak.bf16", {"ttft": "120ms"}),
        ("bandwidth,peak.bf16", {"ttft": "100ms"}),
        ("bandwidth,peak.bf16,vector.fp32", {"e2e": "3s"}),
        ("bandwidth,capacity", {"tpot": "15ms"}),
    ],
)
def test_required_figures_meet_their_target(vary: str, target: dict[str, Any]) -> None:
    found = require("llama-2-70b", "h100-sxm", vary=vary, **target)
    assert found.solutions
    assert found.best is not None
    setting = found.setting(found.best).replace("--set ", "").replace(" ", ",")
    again = _analyzed("llama-2-70b", "h100-sxm", set=setting)
    assert again["metrics"][found.metric] == pytest.approx(found.target, rel=1e-3)
    if "capacity" in vary:
        assert again["memory"]["fits"]


@pytest.mark.parametrize("engine", engine.names())
def test_the_least_capacity_of_every_engine_holds_the_workload_and_less_does_not(engine: str) -> None:
    """Every engine sees and takes its own part of a capacity; the figures go back into `analyze` unchanged."""
    words, chip = {"batch_size": 64, "engine": engine}, chip_for(engine)
    (found,) = require("llama-3.1-8b", chip, vary="capacity", e2e="200s", **words).solutions
    assert _analyzed("llama-3.1-8b", chip, set=found.figures, **words)["memory"]["fits"]
    less = {"capacity": found.figures["capacity"] * (1.0 - 1e-6)}
    assert not _analyzed("llama-3.1-8b", chip, set=less, **words)["memory"]["fits"]


def test_the_line_of_a_solution_with_a_capacity_fits_and_meets_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--tpot 20ms --vary bandwidth,capacity --hardware h200 --quantization fp8 --engine vllm"
    assert main(shlex.split(f"require llama-3.1-70b {line} --format json")) == 0
    command = json.loads(capsys.readouterr().out)["command"]
    assert main([*shlex.split(command)[1:], "--format", "json"]) == 0, "1 where it does not fit"
    assert json.loads(capsys.readouterr().out)["metrics"]["tpot_s"] <= 20e-3


def test_the_least_capacity_of_sequences_that_start_one_by_one_runs_as_many() -> None:
    words = {"batch_size": 640, "engine": "vllm", "batching": "continuous"}
    (found,) = require("llama-3.1-8b", "h100-sxm", vary="bandwidth,capacity", tpot="140ms", **words).solutions
    now, again = (lv.analyze("llama-3.1-8b", "h100-sxm", **words, **one) for one in ({}, {"set": found.figures}))
    assert float(again.tpot_s) == pytest.approx(found.reached, rel=1e-9)
    assert found.reached <= 140e-3
    assert now.analysis.running is not None
    assert again.analysis.running is not None
    assert again.analysis.running.request.batch_size == now.analysis.running.request.batch_size


def test_a_capacity_to_which_a_technique_adapts_cannot_vary() -> None:
    with pytest.raises(UserError, match="adapts to the request and the chip"):
        require("opt-30b", "t4", vary="capacity", e2e="60s", offload="flexgen")


def test_plain_numbers_of_a_mapping_are_in_si_units() -> None:
    (found,) = require("llama-3.1-8b", "h100-sxm", vary="bandwidth", tpot="5ms").solutions
    again = lv.analyze("llama-3.1-8b", "h100-sxm", set=found.figures)
    assert float(again.tpot_s) == pytest.approx(found.reached, rel=1e-12)
    texts = lv.analyze("llama-3.1-8b", "h100-sxm", set="bandwidth=6TB/s,launch=x0.5,peak.bf16=1PFLOP/s,units=132")
    numbers = {"bandwidth": 6e12, "launch": 0.5, "peak.bf16": 10**15, "units": np.float64(132)}
    assert lv.analyze("llama-3.1-8b", "h100-sxm", set=numbers).tpot_s == texts.tpot_s
    with pytest.raises(UserError, match="unknown figure of a chip 'bandwith'"):
        lv.analyze("llama-3.1-8b", "h100-sxm", set={"bandwith": 6e12})
    with pytest.raises(UserError, match="set bandwidth is"):
        lv.analyze("llama-3.1-8b", "h100-sxm", set={"bandwidth": -1})


def test_a_figure_that_changes_nothing_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """A bf16 model has no use of fp8 units: the answer is the one of the bandwidth alone, with the chip's own rate."""
    alone = require("llama-2-70b", "h100-sxm", vary="bandwidth", tpot="10ms")
    found = require("llama-2-70b", "h100-sxm", vary="bandwidth,peak.fp8", tpot="10ms")
    (least,) = found.solutions
    assert least.figures == {**alone.solutions[0].figures, "peak.fp8": 1978.9e12}
    assert (found.idle, found.searched, found.bound) == (("peak.fp8",), ("bandwidth",), alone.bound)
    assert main(shlex.split("require llama-2-70b --vary peak.fp8 --tpot 60ms")) == 0
    assert "with any peak.fp8" in capsys.readouterr().out


def test_no_point_of_a_frontier_is_worse_than_another() -> None:
    found = require("llama-2-70b", "h100-sxm", vary="bandwidth,peak.bf16,vector.fp32", ttft="100ms")
    points = np.array([list(one.figures.values()) for one in found.solutions])
    for at, point in enumerate(points):
        others = np.delete(points, at, axis=0)
        assert not (others <= point * (1 - 1e-6)).all(axis=1).any()


def test_a_frontier_falls() -> None:
    """More of one figure takes less of the other."""
    found = require("llama-2-70b", "h100-sxm", vary="bandwidth,peak.bf16", ttft="100ms")
    first, second = (np.array([one.figures[name] for one in found.solutions]) for name in found.vary)
    assert len(found.solutions) >= 8
    assert (np.diff(first) > 0.0).all()
    assert (np.diff(second) < 0.0).all()


def test_the_nearest_chip_meets_the_target() -> None:
    found = require("llama-3.1-8b", "l40s", vary="bandwidth", tpot="8ms")
    assert found.nearest is not None
    assert _analyzed("llama-3.1-8b", found.nearest.hardware)["metrics"]["tpot_s"] <= 8e-3


def test_an_impossible_target_is_answered_with_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("require llama-2-70b --vary bandwidth --tpot 0.5ms")) == 1
    text = capsys.readouterr().out
    assert "no bandwidth meets TPOT 500 µs: a thousand times as much leaves" in text


def test_the_document_has_the_nouns_of_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("require llama-3.1-8b --vary bandwidth --tpot 5ms --format json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "llmviewer.require/1"
    assert set(found) >= {"metric", "target", "vary", "solutions", "reached", "nearest_hardware"}
    assert found["reached"] <= found["target"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--vary bandwidth", "give one of"),
        ("--vary bandwidth --tpot 1ms --ttft 1s", "give only one of"),
        ("--vary bandwidth --tpot 0ms", "allowed: more than 0"),
        ("--vary launch --tpot 1ms", "unknown figure to vary 'launch'"),
        ("--vary launch --tpot 1ms", "links.NAME"),
        ("--vary bandwidth --tokens-per-s fast", "tokens per second of one user"),
        ("--vary bandwidth --tpot 1ms --output-len 1", "needs at least 2"),
        ("--vary l2_bandwidth --tpot 5ms", "give it one with --set"),
        ("--vary bandwidth,capacity,peak.bf16,vector.fp32 --tpot 5ms", "at most 3"),
    ],
)
def test_wrong_questions_are_refused(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(["require", "llama-2-70b", *shlex.split(line)], capsys)


@pytest.mark.parametrize("set_", ["bandwidth=6TB/s", "bandwidth=x2,peak.bf16=x2,launch=x0.5"])
def test_a_figure_that_is_set_can_vary(set_: str) -> None:
    """The search and the elasticities begin at the figures that are set, and the command to re-run has the others."""
    found = require("llama-2-70b", vary="bandwidth", tpot="20ms", set=set_)
    assert found.best is not None
    side = shlex.split(found.command(found.best))
    settings_ = ",".join(side[at + 1] for at, word in enumerate(side) if word == "--set")
    assert settings_.count("bandwidth=") == 1
    again = _analyzed("llama-2-70b", "h100-sxm", set=settings_)["metrics"]["tpot_s"]
    assert again == pytest.approx(20e-3, rel=1e-3)
    assert elasticity("llama-3.1-8b", "h100", set=set_).by_resource["bandwidth"] > 0.3


def test_a_figure_set_to_its_own_value_has_the_same_elasticities() -> None:
    plain, same = (elasticity("llama-3.1-8b", "h100", **one) for one in ({}, {"set": "bandwidth=3.35TB/s"}))
    assert same.by_resource == pytest.approx(plain.by_resource, rel=1e-9)


def test_the_nearest_chip_is_a_real_one() -> None:
    """No chip gets the capacity that is set: no real one both holds 128 GiB of weights and has over 10 TB/s."""
    assert require("llama-2-70b", vary="bandwidth", tpot="20ms", set="capacity=200GB").nearest is None


def test_the_ends_of_a_search_are_told() -> None:
    found = require("llama-3.1-8b", vary="bandwidth", tokens_per_s=1e-6)
    assert any("less was not searched" in text for text in found.warnings)
    assert found.bound is None, "the roofline meets the target at the least bandwidth that is searched"
    full = require("llama-2-70b", vary="bandwidth", tokens_per_s=100)
    assert any("vary capacity too" in text for text in full.warnings)


def test_a_range_of_factors() -> None:
    assert alternatives(["bandwidth=x1:x4:*2"]) == "bandwidth=x1;bandwidth=x2;bandwidth=x4"
    assert alternatives(["launch=x0.5:x1:+x0.25"]) == "launch=x0.5;launch=x0.75;launch=x1"
    with pytest.raises(UserError, match="in a range of factors"):
        alternatives(["bandwidth=x1:4TB/s:*2"])


@pytest.mark.parametrize("name", ["", " ", ".bf16", "peak.", "links."])
def test_an_empty_name_is_no_figure(name: str) -> None:
    with pytest.raises(UserError):
        changes(f"{name}=3TB/s")


def test_a_sweep_has_a_column_for_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    """Factors are told as figures of each chip: 2 x 3.35 TB/s of the H100, and 2 x 2.039 TB/s of the A100."""
    line = "sweep llama-3.2-1b --hardware h100,a100 --set bandwidth=x1\\;x2 --set launch=x0.5 --format"
    assert main(shlex.split(f"{line} csv")) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [float(row["set.bandwidth"]) for row in rows] == pytest.approx([3.35e12, 6.7e12, 2.039e12, 4.078e12])
    assert {float(row["set.launch"]) for row in rows} == {0.5}
    assert main(shlex.split(f"{line} table")) == 0
    table = capsys.readouterr().out
    assert "launch x0.5" in table
    assert "6.7 TB/s" in table


def test_elasticities_of_any_model_on_any_chip_add_up_to_one() -> None:
    """On the roofline every time is work over a rate: 60 pairs of the registries, drawn with a fixed seed."""
    rng = np.random.default_rng(7)
    models, chips = lv.list_models(), lv.list_hardware()
    found = []
    for _ in range(60):
        model, chip = str(rng.choice(models)), str(rng.choice(chips))
        try:
            shares = elasticity(model, chip, efficiency="ideal", batch_size=int(rng.integers(1, 65)))
        except UserError:  # the chip has no rate for the model's formats, or the context is too long
            continue
        found.append((model, chip, sum(shares.by_resource.values())))
    assert len(found) >= 40
    assert [one for one in found if abs(one[2] - 1.0) > 1e-6] == []


def test_elasticities_are_told_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    line = "elasticity llama-3.1-8b --hardware h100 --engine vllm --format"
    found = elasticity("llama-3.1-8b", "h100", engine="vllm")
    assert main(shlex.split(f"{line} json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "llmviewer.elasticity/1"
    assert document["elasticities"] == found.by_resource
    assert main(shlex.split(f"{line} csv")) == 0
    rows = csv.DictReader(capsys.readouterr().out.splitlines())
    assert sum(float(row["elasticity"]) for row in rows) == pytest.approx(1.0, rel=1e-12)
    assert main(shlex.split(f"{line} table")) == 0
    assert f"{found.sentence()} of TPOT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("over", "unit", "values"),
    [
        ("peak.bf16=250TFLOP/s:1PFLOP/s:*2", "peak.bf16 (PFLOP/s)", [0.25, 0.5, 1.0]),
        ("latency=x0.5,x2", "latency (× the chip's own)", [0.5, 2.0]),
        ("links.nvlink=300GB/s,600GB/s", "links.nvlink (GB/s)", [300.0, 600.0]),
        ("l2=x1,x2", "l2 (MB)", [52.4288, 104.8576]),
    ],
)
def test_a_time_is_drawn_over_any_figure(over: str, unit: str, values: list[float]) -> None:
    """Each point is the time of the chip with this figure."""
    from llmviewer.api.configuration import configuration
    from llmviewer.api.figure_axis import figure_axis
    from llmviewer.core.workload import Request
    from llmviewer.reports.plots import figure_curve
    from llmviewer.reports.plots.style import Style

    asked = {"tensor_parallel_size": 2, "batch_size": 1, "input_len": 512}
    one = configuration("llama-3.1-8b", "h100-sxm", tensor_parallel_size="2")
    chips = figure_axis(over, {"a": one}).configurations["a"]
    answers = [chip.answer(Request(batch_size=1, input_len=512, output_len=128)) for chip in chips]
    axes = figure_curve.picture({"a": answers}, Style(), over.partition("=")[0]).axes
    assert [one.get_xlabel() for one in axes] == [unit, unit]
    (line,) = axes[1].lines
    assert line.get_xdata() == pytest.approx(values)
    stages = [
        lv.analyze("llama-3.1-8b", "h100-sxm", set=text, **asked).to_dict()["stages"]["decode"]["time_s"]
        for text in alternatives([over]).split(";")
    ]
    assert line.get_ydata() * 1e-3 == pytest.approx(stages)


def test_requests_at_once_are_drawn_over_the_capacity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"plot figure llama-3.1-8b --hardware h100 --over capacity=24GiB:192GiB:*2 -o {tmp_path / 'a.png'}"
    assert main(shlex.split(line)) == 0
    assert capsys.readouterr().err.startswith("wrote ")
    assert "this plot needs --over" in refusal(shlex.split("plot figure llama-3.1-8b --hardware h100"), capsys)


@pytest.mark.parametrize(
    ("vary", "lines", "chips"), [("bandwidth,peak.bf16", 1, True), ("bandwidth,peak.bf16,vector.fp32", 4, False)]
)
def test_a_frontier_is_drawn(vary: str, lines: int, chips: bool) -> None:  # noqa: FBT001
    """The line has the solutions' figures in the units of the axes, here TB/s and PFLOP/s."""
    found = require("llama-2-70b", vary=vary, ttft="100ms")
    (axes,) = lv.plot("frontier", found).axes
    assert len(axes.lines) == lines
    drawn = np.concatenate([line.get_xdata() for line in axes.lines])
    assert sorted(drawn * 1e12) == pytest.approx(sorted(one.figures["bandwidth"] for one in found.solutions))
    assert bool(axes.collections) is chips
    if chips:
        names = [name for text in axes.texts for name in text.get_text().split("\n")]
        assert found.nearest is not None
        assert {"h100-sxm", found.nearest.hardware} < set(names)
        (dots,) = [one for one in axes.collections if one.get_label() == "chips that exist"]
        assert len(names) == len(dots.get_offsets())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--vary bandwidth,capacity --target 20ms", "a frontier needs two rates"),
        ("--vary bandwidth,peak.bf16 --target 1ms", "at least 4.52 ms remain"),
        ("--vary bandwidth,peak.bf16", "this plot needs --target"),
        ("--target 20ms", "this plot needs --vary"),
    ],
)
def test_a_frontier_that_cannot_be_drawn(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"plot frontier llama-2-70b --hardware h100 {words}")) == 2
    assert message in capsys.readouterr().err


def test_a_figure_is_an_axis_of_a_crossover(capsys: pytest.CaptureFixture[str]) -> None:
    """Every cell is the decode time of its configuration on the chip with the row's bandwidth and other settings."""
    line = (
        "crossover llama-3.1-8b --hardware h100 --quantization none,w4a16 --over bandwidth=1TB/s:4TB/s:*2 "
        "--batch-size 1,16 --context 2048 --set launch=x0.5 --format json"
    )
    assert main(shlex.split(line)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["figure"] == "bandwidth"
    assert found["figure_values"] == ["1TB/s", "2TB/s", "4TB/s"]
    for k, quantization in enumerate(found["configurations"]):
        for i, value in enumerate(found["figure_values"]):
            for j, batch in enumerate(found["batch_sizes"]):
                single = lv.analyze(
                    "llama-3.1-8b", "h100", quantization=quantization, batch_size=batch, input_len=2048,
                    output_len=1, set=f"launch=x0.5,bandwidth={value}",
                )  # fmt: skip
                assert found["values"][k][i][j] == pytest.approx(float(single.analysis.token_s[0]), rel=1e-12)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--over bandwidth=x1;x2 --context 1k,2k", "give one context instead of 2"),
        ("--over bandwidth=x1;x2 --set bandwidth=6TB/s", "gives bandwidth twice"),
        ("--over bandwidth=x1,capacity=x2", "one figure of the chip"),
        ("--over bandwith=x1", "did you mean 'bandwidth'"),
    ],
)
def test_an_axis_that_is_none_is_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["crossover", "llama-3.1-8b", "--hardware", "h100", "--quantization", "none,w4a16", *words.split()]
    assert message in refusal(line, capsys)


def test_a_crossover_over_a_figure_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "map.svg"
    line = f"plot crossover llama-3.1-8b --hardware h100 --quantization none,w4a16 --over launch=x0.5\\;x1 -o {picture}"
    assert main(shlex.split(line)) == 0
    assert picture.stat().st_size > 0


def test_launches_of_a_draft_model_count() -> None:
    """Elasticity of launches with a draft model: the change of the time with 0.1 % more and less of them."""
    words = {"speculative": "draft=llama-3.2-1b,tokens=4,acceptance=0.8"}
    found = elasticity("llama-3.1-8b", "h100", **words)
    times = [
        _analyzed("llama-3.1-8b", "h100", set=f"launch=x{f}", **words)["metrics"]["tpot_s"] for f in (0.999, 1.001)
    ]
    assert found.by_resource["launch"] == pytest.approx(np.log(times[1] / times[0]) / np.log(1.001 / 0.999), rel=1e-2)
    assert found.by_resource["launch"] > 0.25


def test_no_capacity_changes_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("require llama-3.1-8b --vary capacity --tpot 4ms")) == 1
    assert "it is 6.93 ms with any" in capsys.readouterr().out
