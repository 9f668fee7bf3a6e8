"""Figures of a request as the usual engine serves it, beside those of its kernels alone: equal, named, or none."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

import llmviewer as lv
from llmviewer import api
from llmviewer.api.configuration import Configuration
from llmviewer.cli import main
from llmviewer.core import data
from llmviewer.hardware import specs
from llmviewer.language.quantity import BY_ENGINE, METRICS
from llmviewer.planning.manifests import vllm
from llmviewer.planning.manifests.flags import METHODS
from llmviewer.reports import verdict
from llmviewer.result.result import SERVED, Result
from llmviewer.server import compact
from llmviewer.simulation import call
from llmviewer.techniques.registry import TECHNIQUES
from llmviewer.timing import engine
from llmviewer.timing.engine_serving import AT_A_DESK, ENGINE, OF_EVERY_ENGINE, ON_A_MAC, usual
from tests.imports import ROOT

SIZES = {"batch_size": 4, "input_len": 256, "output_len": 32}
CHIPS = data.stems("hardware_specs")
PRESETS = {name: engine.load(name) for name in (ENGINE, AT_A_DESK, ON_A_MAC)}


@cache
def answer(model: str = "llama-3.1-8b", chip: str = "h100", **options: Any) -> dict[str, Any]:
    return lv.analyze(model, chip, **{**SIZES, **options}).to_dict()


@pytest.mark.parametrize(
    ("name", "chip", "options"),
    [
        ("vllm", "h100", {}),
        ("vllm", "mi300x", {"tensor_parallel_size": 2}),
        ("vllm", "h100", {"quantization": "fp8", "batching": "continuous"}),
        ("vllm", "h100", {"speculative": "draft=llama-3.2-1b,tokens=3,acceptance=0.7"}),
        ("vllm", "rtx-4090", {"quantization": "awq"}),
        ("llama.cpp", "rtx-4090", {}),
        ("llama.cpp", "m3-max", {"quantization": "q4_k_m"}),
        ("llama.cpp", "h100", {"quantization": "q4_k_m"}),
        ("mlx-lm", "m3-max", {"quantization": "mlx-4bit"}),
    ],
)
def test_served_figures_are_those_of_the_stated_engine_to_the_bit(name: str, chip: str, options: Any) -> None:
    alone, stated = answer(chip=chip, **options), answer(chip=chip, engine=name, **options)
    found = alone["served"]
    assert (found["engine"], found["engine_title"]) == (name, stated["efficiency"]["engine_title"])
    assert {one: found[one] for one in BY_ENGINE} == {one: stated["metrics"][one] for one in BY_ENGINE}
    assert found["intervals"] == stated["metrics"]["intervals"]
    assert found["fits"] is stated["memory"]["fits"]
    assert set(found) == {"engine", "engine_title", *BY_ENGINE, "intervals", "fits"}
    assert alone["metrics"] != stated["metrics"]
    assert alone["served_unknown"] is stated["served"] is stated["served_unknown"] is None


def test_metrics_are_those_of_the_kernels_whatever_serves() -> None:
    assert answer()["metrics"] == answer(engine="kernels")["metrics"]
    assert answer()["efficiency"]["engine"] == "kernels"


@pytest.mark.parametrize("options", [{"engine": "kernels"}, {"engine": "sglang"}, {"efficiency": "ideal"}])
def test_a_stated_engine_and_ideal_times_have_no_other_engine(options: dict[str, str]) -> None:
    assert answer(**options)["served"] is answer(**options)["served_unknown"] is None


@pytest.mark.parametrize(
    ("model", "chip", "options", "why"),
    [
        ("llama-3.1-8b", "tpu-v5e", {}, "no engine is taken for tpu-v5e unless --engine names one"),
        ("bert-base", "h100", {"output_len": 1}, "presets of engines time decoders only"),
        ("t5-v1.1-base", "h100", {}, "presets of engines time decoders only"),
        ("dream-7b", "h100", {}, "vLLM 0.21 does not run DreamModel"),
        ("llama-3.1-8b", "m3-max", {"quantization": "w2a16"}, "has no kernels for weights in int2-g128"),
        ("llama-3.1-8b", "h100", {"quantization": "w2a16"}, "vLLM 0.21 has no kernels for weights in int2-g128"),
        ("llama-3.1-8b", "h100", {"kv_cache_dtype": "kv4"}, "vLLM 0.21 has no kernels for caches in kv4"),
        (
            "llama-3.1-8b",
            "h100",
            {"offload": "weights=0.5"},
            "the preset of vLLM 0.21 does not cover --offload weights",
        ),
        ("llama-3.1-8b", "h100", {"fusion": "all"}, "the preset of vLLM 0.21 does not cover --fusion all"),
        (
            "llama-3.1-8b",
            "h100",
            {"speculative": "lookahead,window=7,acceptance=0.5"},
            "cover --speculative lookahead",
        ),
        ("llama-3.1-8b", "m3-max", {"skip_layers": "0.2"}, "llama.cpp does not cover --skip-layers 0.2"),
    ],
)
def test_what_no_engine_serves_has_a_reason(model: str, chip: str, options: Any, why: str) -> None:
    found = answer(model, chip, **options)
    assert found["served"] is None
    assert why in found["served_unknown"]
    if model != "bert-base":
        assert f"no figure of an engine: {found['served_unknown']}" in dict(verdict.at_once(found).lines)["Speed"]


@pytest.mark.parametrize("chip", CHIPS)
def test_every_chip_has_its_usual_engine_or_none(chip: str) -> None:
    """Apple, Ryzen AI, desktops and older chips are served by llama.cpp, other GPUs by vLLM, the rest by none."""
    one = specs.load(chip)
    serving = [name for name in usual(one) if one.generation in PRESETS[name].serves.generations]
    at_a_desk = one.generation in ("apple", "rdna3.5") or one.default_host.startswith("desktop")
    older = one.generation in ("pascal", "gcn5", "cdna")  # than compute capability 7.0 and MI200, the first of vLLM
    gpu = one.maker in ("NVIDIA", "Apple") or one.generation.startswith(("cdna", "rdna", "xe", "gcn"))
    assert serving[:1] == ([AT_A_DESK if at_a_desk or older else ENGINE] if gpu else [])


def test_the_engine_of_simulations_is_that_of_servers() -> None:
    assert call.of_server("h100", {})["engine"] == ENGINE == usual(specs.load("h100"))[0]


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_presets_name_known_generations_options_and_a_source(preset: engine.Engine) -> None:
    generations = {specs.load(chip).generation for chip in CHIPS}
    assert set(preset.serves.generations) <= generations
    assert set(preset.serves.options) <= set(TECHNIQUES) - set(OF_EVERY_ENGINE)
    assert preset.serves.source.startswith("https://")
    assert set(OF_EVERY_ENGINE) <= set(TECHNIQUES)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method != "gguf"])
def test_formats_that_vllm_serves_are_those_that_it_can_be_launched_with(name: str) -> None:
    found = api.configuration("llama-3.2-1b", "b200", quantization=name).answer(api.request(1, 64, 1)).as_served
    assert isinstance(found, Result) == (METHODS[name] in vllm.TABLES.methods)


@pytest.mark.parametrize("width", [80, 160])
def test_the_verdict_names_both(capsys: Any, monkeypatch: Any, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["analyze", "llama-3.1-8b", "--hardware", "h100"]) == 0
    text = capsys.readouterr().out.split("Bottleneck")[0]
    assert max(map(len, text.splitlines())) <= width
    found, words = lv.analyze("llama-3.1-8b", "h100").to_dict(), " ".join(text.split())
    assert f"{1.0 / found['metrics']['tpot_s']:.0f} tokens/s per user by its kernels (80 % interval" in words
    assert f"; {1.0 / found['served']['tpot_s']:.0f} as vLLM 0.21 serves it (" in words


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("vllm==0.19", "vLLM 0.19"),
        ("llama.cpp", "llama.cpp with CUDA"),
        ("llama.cpp==b3000", "llama.cpp b3000"),
        ("trtllm", "TensorRT-LLM 1.x"),
    ],
)
def test_the_verdict_names_a_stated_engine(name: str, title: str) -> None:
    (speed,) = (line[1] for line in verdict.at_once(answer(engine=name)).lines if line[0] == "Speed")
    assert f"tokens/s per user as {title} serves it" in speed
    assert "kernels" not in speed


def test_a_batch_that_starts_together_says_so_where_an_engine_serves_it() -> None:
    hint = "TTFT is the prefill of the whole batch (as requests come: --batching continuous)"
    served, alone = answer(), answer("llama-3.1-8b", "h100", engine="kernels")
    one, continuous = answer(batch_size=1), answer(batching="continuous")
    texts = [
        dict(verdict.at_once(each).lines)["Speed"] for each in (served, answer(engine="vllm"), alone, one, continuous)
    ]
    assert [hint in text for text in texts] == [True, True, False, False, False]


def test_figures_that_do_not_fit_with_the_engine_say_so() -> None:
    """16-bit weights of 8B fill 15 of 16 GiB: without an engine they fit, vLLM needs more beside them."""
    found = answer("llama-3.1-8b", "t4", gpu_memory_utilization=0.99, batch_size=1)
    assert found["memory"]["fits"]
    assert not found["served"]["fits"]
    assert "serves it" in dict(verdict.at_once(found).lines)["Speed"]
    assert dict(verdict.at_once(found).lines)["Speed"].endswith("where it does not fit")


def test_sweeps_comparisons_and_figures_never_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Configuration, "served", refuse)
    found = lv.analyze("llama-3.1-8b", "h100", **SIZES)
    assert found.tpot_s > 0.0 and not found.to_frame().empty and found.memory and found.metrics()
    assert not lv.sweep("llama-3.1-8b", ["h100", "a100"], batch_size=[1, 2]).to_frame().empty
    compared = lv.compare("llama-3.1-8b", ["h100", "a100"], **SIZES)
    assert not set(SERVED) & set(compared.to_dict()["configurations"][0])
    assert "served" not in compact.comparison(compared)["configurations"][0]
    assert main(["analyze", "llama-3.2-1b", "--hardware", "h100", "--format", "csv", "-o", "-"]) == 0
    with pytest.raises(AssertionError):
        found.to_dict()


def test_it_is_computed_once_for_all_points() -> None:
    found = lv.analyze("llama-3.1-8b", "h100", batch_size=[1, 8], input_len=256, output_len=32)
    first, second = (found.to_dict(point)["served"] for point in (0, 1))
    assert first["output_tokens_per_s"] < second["output_tokens_per_s"]
    assert second == lv.analyze("llama-3.1-8b", "h100", batch_size=8, input_len=256, output_len=32).to_dict()["served"]
    assert found.as_served is found.as_served


def test_json_and_assistants_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"--{name.replace('_', '-')}={size}" for name, size in SIZES.items()]
    assert main(["analyze", "llama-3.1-8b", "--hardware", "h100", "--format", "json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["served"] == answer()["served"]
    short = compact.analysis(lv.analyze("llama-3.1-8b", "h100", **SIZES))["served"]
    assert (short["engine"], short["fits"]) == ("vLLM 0.21", True)
    assert {name: one["value"] for name, one in short["metrics"].items()} == {
        name: answer()["served"][name] for name in BY_ENGINE
    }
    assert all(short["metrics"][name]["unit"] == METRICS[name].unit.symbol for name in BY_ENGINE)
    refused = lv.analyze("llama-3.1-8b", "h100", offload="weights=0.5", **SIZES)
    assert "served" not in compact.analysis(refused) and "--offload" in compact.analysis(refused)["served_unknown"]


def test_a_notebook_shows_both() -> None:
    text = lv.analyze("llama-3.1-8b", "h100", **SIZES)._repr_html_()
    assert "by its kernels" in text and "as vLLM 0.21 serves it" in text


def test_the_conventions_name_every_key() -> None:
    pages = list((ROOT / "docs").rglob("conventions.md"))
    text = pages[0].read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in (*SERVED, *answer()["served"]))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(list(words)) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "head"),
    [
        (("compare", "llama-3.2-1b", "--hardware", "h100,a100", "--engine", "vllm"), "Engine vLLM 0.21"),
        (("compare", "llama-3.2-1b", "--hardware", "h100,a100"), "Engine kernels only"),
        (
            ("compare", "llama-3.2-1b", "--hardware", "h100", "--engine", "kernels,vllm"),
            "Engine kernels only vLLM 0.21",
        ),
        (("sweep", "llama-3.2-1b", "--hardware", "h100", "--batch-size", "1,2"), "Engine kernels"),
        (
            ("crossover", "llama-3.2-1b", "--hardware", "h100", "--engine", "kernels,vllm", "--batch-size", "1,2"),
            "lowest decode time per token (calibrated, kernels only, vLLM 0.21); one column per batch size",
        ),
        (("size", "llama-3.2-1b", "--hardware", "h100", "--request-rate", "2", "--tpot", "50ms"), "Engine vllm"),
    ],
)
def test_tables_name_the_engine_in_their_head(capsys: Any, monkeypatch: Any, words: Any, head: str) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    lines = [" ".join(line.split()) for line in printed(capsys, *words)]
    assert any(line.startswith(head) for line in lines)


def test_plots_name_the_engine_in_their_title() -> None:
    from llmviewer.reports.plots.curves import common_title

    for name in ("kernels", "vllm"):
        frame = lv.sweep("llama-3.2-1b", "h100", batch_size=[1, 2], engine=name).to_frame()
        assert common_title(frame).endswith(f"calibrated {name}")


def test_the_viewer_and_a_notebook_say_what_the_table_says() -> None:
    """Their objects are computed part by part; a part that is asked for by `get` is no exception."""
    pytest.importorskip("dash")
    from llmviewer.reports.web.tabs import content
    from llmviewer.reports.web.view import view_of

    view = view_of("model=llama-3.2-1b&hardware=h100-sxm&batch_size=2", "light")
    whole = view.result.to_dict()
    assert view.answer.get("served") == whole["served"] is not None
    assert view.answer.get("nothing", "else") == "else"
    (speed,) = (text for label, text in verdict.at_once(whole).lines if label == "Speed")
    assert "as vLLM" in speed
    assert "as vLLM" in str(content(view)) and "as vLLM" in view.result._repr_html_()
