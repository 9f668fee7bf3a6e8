"""Calls from Python: lists, dicts, attributes of results, frames, figures, and configurations that are kept."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure
from matplotlib.text import Text

import llmviewer as lv
from llmviewer import api
from llmviewer.api import keywords
from llmviewer.core import data, files
from llmviewer.hardware import specs
from llmviewer.techniques.options import OPTIONS
from tests.certificate.our_counts import published_config

DOCS = Path(__file__).resolve().parent.parent / "docs"


def generator():
    spec = importlib.util.spec_from_file_location("python_api", DOCS / "python_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_public_names_are_listed_and_complete():
    assert set(dir(lv)) >= {"analyze", "sweep", "compare", "crossover", "plot", "list_models", "Result", "UserError"}
    assert all(getattr(lv, name) is not None for name in dir(lv))


def test_importing_the_package_loads_nothing_heavy():
    heavy = ("numpy", "pandas", "matplotlib", "typer")
    code = f"import sys, llmviewer as lv; dir(lv); print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_page_and_the_types_of_keyword_arguments_are_those_of_the_code():
    made = generator()
    assert (DOCS / "reference" / "api.md").read_text(encoding="utf-8") == made.api()
    assert Path(keywords.__file__).read_text(encoding="utf-8") == made.keywords()
    run = {name for name, one in OPTIONS.items() if one.group != "workload"}
    assert set(keywords.RunOptions.__annotations__) == set(keywords.RunOptionLists.__annotations__) == run
    for call in (lv.analyze, lv.sweep, lv.compare, lv.crossover):
        assert run <= set(inspect.signature(call).parameters)


def test_lists_name_what_calls_take():
    assert "llama-2-7b" in lv.list_models() and "h100-sxm" in lv.list_hardware()
    assert "quantization" in lv.list_techniques() and {"kernels", "vllm"} <= set(lv.list_engines())


def test_a_config_and_a_chip_may_be_dicts():
    """Twice the bandwidth in the dict halves the time of a memory-bound step."""
    config = dict(published_config("llama-2-7b"))
    spec = yaml.safe_load((data.folder("hardware_specs") / "a6000.yaml").read_text(encoding="utf-8"))
    named = lv.analyze("llama-2-7b", "a6000", efficiency="ideal")
    given = lv.analyze(config, spec, efficiency="ideal")
    assert given.tpot_s == named.tpot_s and given.memory["weights_bytes"] == named.memory["weights_bytes"]
    spec["memory_bandwidth_gb_per_s"] = 2 * 768.0
    assert lv.analyze(config, spec, efficiency="ideal").tpot_s == pytest.approx(named.tpot_s / 2.0, rel=1e-9)


def test_a_result_has_its_metrics_as_attributes():
    one = lv.analyze("llama-2-7b", "a6000")
    many = lv.analyze("llama-2-7b", "a6000", batch_size=[1, 8])
    answer = one.to_dict()
    for name in ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "prefill_mfu", "decode_mbu"):
        assert isinstance(getattr(one, name), float) and getattr(one, name) == answer["metrics"][name]
        assert list(getattr(many, name)) == list(many.to_frame()[name])
    assert one.fits is True and one.memory == answer["memory"]
    assert set(one.operators["stage"]) == {"prefill", "decode"}


def test_a_sweep_is_the_product_of_its_lists_and_equals_single_answers():
    lists = {"batch_size": [1, 8], "input_len": [128, 256], "tensor_parallel_size": [1, 2]}
    found = lv.sweep("llama-2-7b", ["a6000", "h100"], **lists)
    frame = found.to_frame()
    assert len(found) == len(frame) == 2 * 2 * 2 * 2
    assert frame["tensor_parallel_size"].dtype.kind == "i" and set(frame["tensor_parallel_size"]) == {1, 2}
    row = frame[(frame.hardware == "h100-sxm") & (frame.batch_size == 8) & (frame.input_len == 256)]
    single = lv.analyze("llama-2-7b", "h100", batch_size=8, input_len=256, tensor_parallel_size=2)
    assert row[row.tensor_parallel_size == 2]["tpot_s"].item() == single.tpot_s
    assert {"tpot_low80_s", "tpot_high80_s", "decode_ideal_time_s"} <= set(frame)


@pytest.mark.parametrize("kinds", [["ideal", "calibrated"], ["calibrated", "ideal"]])
def test_ideal_times_have_no_bounds_beside_calibrated_ones(kinds):
    swept = lv.sweep("llama-2-7b", "a6000", batch_size=[1, 8], efficiency=kinds).to_frame()
    compared = lv.compare("llama-2-7b", "a6000", efficiency=kinds).to_frame()
    for frame in (swept, compared):
        assert frame["tpot_low80_s"].isna().tolist() == (frame["efficiency"] == "ideal").tolist()
        assert not [name for name in frame if "interval" in name]
    calibrated = swept[(swept.efficiency == "calibrated") & (swept.batch_size == 1)]
    assert calibrated["tpot_low80_s"].item() == compared["tpot_low80_s"].dropna().item()


def test_wrong_lists_are_refused():
    with pytest.raises(lv.UserError, match="quantization is an empty list"):
        lv.sweep("llama-2-7b", "a6000", quantization=[])
    with pytest.raises(lv.UserError, match="configurations; allowed: at most 10,000"):
        lv.sweep(["llama-2-7b"] * 200, ["a6000"] * 200)
    with pytest.raises(lv.UserError, match="tpot_s"):
        lv.crossover("llama-2-7b", ["a6000", "h100"], metric="tpot")


def test_a_comparison_and_a_crossover_are_frames_too():
    compared = lv.compare("llama-2-7b", ["a6000", "h100"]).to_frame()
    assert list(compared["hardware"]) == ["a6000", "h100-sxm"] and compared["tpot_s_ratio_to_first"][1] < 0.5
    crossed = lv.crossover("llama-2-7b", ["a6000", "h100"], batch_size=[1, 8], context=[128, 512])
    assert list(crossed.to_frame()["winner"]) == ["h100"] * 4


def test_frames_leave_out_options_that_all_rows_have_at_their_defaults():
    calls = (lv.sweep("llama-2-7b", "a6000", attention=["flash", "eager"]), lv.compare("llama-2-7b", ["a6000", "h100"]))
    swept, compared = (one.to_frame() for one in calls)
    assert {"attention", "quantization", "kv_cache_dtype"} <= set(swept) and "lora" not in swept
    assert "attention" not in compared and "tensor_parallel_size" not in compared
    assert {"lora", "attention", "tensor_parallel_size"} <= set(calls[1].rows()[0]), "files have every column"
    assert {"lora", "prune"} <= set(lv.analyze("llama-2-7b", "a6000").columns())


@pytest.mark.parametrize("kind", ["roofline", "operators", "latency", "memory"])
def test_a_plot_takes_a_result(kind):
    batch = [1, 8] if kind in ("latency", "memory") else 1
    assert isinstance(lv.plot(kind, lv.analyze("llama-2-7b", "a6000", batch_size=batch)), Figure)


def test_a_plot_takes_a_frame_a_sweep_and_a_crossover():
    lists = {"batch_size": [1, 8]}
    sweep = lv.sweep("llama-2-7b", ["a6000", "h100"], **lists)
    for drawn in (sweep, sweep.to_frame()):
        figure = lv.plot("throughput", drawn, style="paper")
        assert {"a6000", "h100-sxm"} <= {text.get_text() for text in figure.findobj(Text)}
    assert lv.plot("crossover", lv.crossover("llama-2-7b", ["a6000", "h100"], **lists, context=[128, 512])).axes


@pytest.mark.parametrize(
    ("kind", "data", "options", "message"),
    [
        ("roofline", {"a": 5}, {}, "takes a Result or several, not a dict"),
        ("roofline", [], {}, "takes 1 to 7 results, not 0"),
        ("waterfall", "one", {}, "takes 2 results, not 1"),
        (
            "roofline",
            "one",
            {"colour": "red"},
            "unknown option of plot roofline 'colour'; allowed: all_roofs, measured",
        ),
        ("throughput", pd.DataFrame({"model": []}), {}, "it has no column hardware, batch_size"),
        ("throughput", "no rows", {}, "it has no rows"),
    ],
)
def test_a_plot_says_what_it_takes(kind, data, options, message):
    one = lv.analyze("llama-2-7b", "a6000")
    given = {"one": one, "no rows": one.to_frame().head(0)}.get(data, data) if isinstance(data, str) else data
    with pytest.raises(lv.UserError, match=message):
        lv.plot(kind, given, **options)


def test_a_result_has_no_other_points_and_stages():
    one = lv.analyze("llama-2-7b", "a6000", batch_size=[1, 8])
    for ask in (one.to_dict, one.memory_at, one.metrics, lambda point: one.attribution("ttft_s", point)):
        ask(1)
        with pytest.raises(lv.UserError, match="point is 2; allowed: 0 to 1"):
            ask(2)
    with pytest.raises(lv.UserError, match="unknown stage 'verify'; allowed: decode, prefill"):
        one.stage("verify")


def test_results_print_on_one_line():
    sweep = lv.sweep("llama-2-7b", ["a6000", "h100"], batch_size=[1, 2, 4])
    assert repr(sweep) == "<Sweep: 6 points, configurations: 2; to_frame() prices them>"
    crossed = lv.crossover("llama-2-7b", ["a6000", "h100"], batch_size=[1, 8, 9], context=[128, 512])
    assert repr(crossed) == "<Crossover: decode_time_s of a6000, h100 over 2 x 3 points>"


def test_names_of_the_command_line_and_lists_are_answered_with_the_names_here():
    with pytest.raises(lv.UserError, match=r"unknown option 'tp' \(use tensor_parallel_size\)"):
        lv.analyze("llama-2-7b", "a6000", tp=2)
    with pytest.raises(lv.UserError, match=r"hardware is a list; .*; for lists use compare or sweep"):
        lv.analyze("llama-2-7b", ["a6000", "h100"])


def test_a_plot_refuses_other_data():
    with pytest.raises(lv.UserError, match="plot roofline takes a Result or several, not a DataFrame"):
        lv.plot("roofline", pd.DataFrame())
    with pytest.raises(lv.UserError, match="theme"):
        lv.plot("roofline", lv.analyze("llama-2-7b", "a6000"), theme="purple")


def test_a_changed_file_is_read_again(tmp_path):
    """Half the layers in the changed config give about half the weights."""
    config = dict(published_config("llama-2-7b"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    before = lv.analyze(path, "a6000").memory["weights_bytes"]
    assert lv.analyze(path, "a6000").memory["weights_bytes"] == before
    path.write_text(json.dumps(config | {"num_hidden_layers": 16}), encoding="utf-8")
    assert lv.analyze(path, "a6000").memory["weights_bytes"] < 0.6 * before


def test_a_kept_configuration_is_one_of_the_same_options():
    first = api.configuration("llama-2-7b", "a6000", tensor_parallel_size=2)
    assert api.configuration("llama-2-7b", "a6000", tensor_parallel_size=2) is first
    assert api.configuration("llama-2-7b", "a6000", tensor_parallel_size=1) is not first
    assert api.configuration("llama-2-7b", "a6000") is not first


def test_a_value_that_failed_is_not_kept_and_one_of_a_changed_file_is_read_again(tmp_path):
    cache, path = files.CacheOfFiles(), tmp_path / "number"

    def read():
        files.record(path)
        return int(path.read_text(encoding="utf-8"))

    with pytest.raises(OSError, match="number"):
        cache.get("number", read)
    for text in ("1", "22"):
        path.write_text(text, encoding="utf-8")
        assert cache.get("number", read) == int(text)


def test_a_value_made_of_a_kept_one_is_rebuilt_when_the_file_of_that_one_changes(tmp_path):
    """The inner value is already kept when the outer one is built, so it is not read again, but still noted."""
    inner, outer, path = files.CacheOfFiles(), files.CacheOfFiles(), tmp_path / "number"

    def read():
        files.record(path)
        return int(path.read_text(encoding="utf-8"))

    for text in ("1", "22"):
        path.write_text(text, encoding="utf-8")
        assert inner.get("number", read) == int(text)
        assert outer.get("double", lambda: 2 * inner.get("number", read)) == 2 * int(text)


def test_a_changed_chip_is_read_again(tmp_path):
    """Twice the bandwidth halves the time of a memory-bound decode; the chip alone is asked for first."""
    path, text = tmp_path / "mine.yaml", (data.folder("hardware_specs") / "a6000.yaml").read_text(encoding="utf-8")
    times = []
    for bandwidth in (768, 1536):
        path.write_text(re.sub(r"(memory_bandwidth_gb_per_s:\D*)768", rf"\g<1>{bandwidth}", text), encoding="utf-8")
        assert float(specs.load(str(path)).bandwidth_bytes_per_s) == bandwidth * 1e9
        found = lv.analyze("llama-2-7b", path, efficiency="ideal", output_len=2)
        times.append(found.metrics()["tpot_s"])
    assert times[1] == pytest.approx(times[0] / 2, rel=0.01)


def test_a_caller_cannot_change_what_is_kept():
    found = lv.analyze("llama-2-7b", "a6000").analysis
    chip = found.system.chip
    for mapping in (chip.figures, chip.links, *(fit.fit.constants for fit in found.calibration.selected.values())):
        with pytest.raises(TypeError):
            mapping["anything"] = 1.0


def test_text_columns_of_a_result_are_texts():
    frame = lv.analyze("llama-2-7b", "a6000", batch_size=np.array([1, 2])).to_frame()
    assert list(frame["hardware"]) == ["a6000", "a6000"] and frame["fits"].dtype == bool
