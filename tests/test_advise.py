"""Advice: changes that were tried, ranked, combined greedily; figures that analyze repeats; limits and wrong input."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

import llmviewer as lv
from llmviewer import api
from llmviewer.api.trials import NUMBER_FORMATS, changed, tried, verdict
from llmviewer.cli import main
from llmviewer.core import data
from llmviewer.planning import accuracy
from llmviewer.planning.advise_search import PRESETS, _is_target
from llmviewer.planning.run_metrics import run_metric
from llmviewer.planning.why_line import side
from llmviewer.techniques.options import WORKLOAD

MODEL = "llama-3.2-1b"
SMALL = {"input_len": 256, "output_len": 16}
#: Runs that differ in what applies: kernels and engine, throughput, limits, memory that lacks, experts, no fp8.
RUNS: list[dict[str, Any]] = [
    {"model": MODEL, "hardware": "h100", **SMALL},
    {"model": "llama-3.1-8b", "hardware": "a100", "engine": "vllm", "batch_size": 16, **SMALL},
    {"model": MODEL, "hardware": "l40s", "metric": "output_tokens_per_s", "tpot": "10ms", "ttft": "1s", **SMALL},
    {"model": "llama-3.1-70b", "hardware": "h100", "batch_size": 8, **SMALL},
    {"model": "qwen3-30b-a3b", "hardware": "rtx-4090", **SMALL},
    {"model": "deepseek-v3", "hardware": "h200", "tensor_parallel_size": 8, **SMALL},
    {"model": MODEL, "hardware": "m2-ultra", "efficiency": "ideal", "metric": "e2e_s", **SMALL},
    {"model": MODEL, "hardware": "t4", "metric": "output_tokens_per_s_per_device", **SMALL},
]


@pytest.fixture(scope="module", params=RUNS, ids=lambda run: f"{run['model']}-{run['hardware']}")
def found(request: pytest.FixtureRequest) -> lv.Advice:
    return lv.advise(**request.param)


def answered(command: str) -> lv.Result:
    """The result of a printed command, by lv.analyze."""
    stated = side(command)
    sizes = {name: stated.words[name] for name in WORKLOAD}
    return lv.analyze(stated.model, stated.hardware, **sizes, **stated.options)


def test_every_printed_command_gives_the_printed_figure(found: lv.Advice) -> None:
    answer = found.to_dict()
    metric = run_metric(answer["metric"])
    rows = [*answer["advice"], *answer["more_devices"], *answer["broken"]]
    assert metric.of(answered(answer["command"])) == pytest.approx(answer["now"], rel=1e-12)
    for row in (*rows, answer["combination"]):
        assert metric.of(answered(row["command"])) == pytest.approx(row["then"], rel=1e-12), row["command"]


def test_the_combination_is_never_worse_than_the_best_single_change(found: lv.Advice) -> None:
    answer = found.to_dict()
    assert answer["advice"] or answer["more_devices"] or answer["broken"] or not answer["combination"]["steps"]
    best, sign = answer["combination"], 1.0 if answer["less_is_better"] else -1.0
    assert all(sign * best["then"] <= sign * row["then"] for row in answer["advice"])
    assert best["holds"] or not answer["advice"]


def test_advised_changes_hold_help_and_are_ranked(found: lv.Advice) -> None:
    answer = found.to_dict()
    gains = [row["gain"] for row in answer["advice"]]
    if answer["holds"]:
        assert gains == sorted(gains, reverse=True)
        assert all(gain >= 1.02 for gain in gains)
    for row in answer["advice"]:
        assert row["fits"] and row["holds"]
        assert all(row[limit["metric"]] <= limit["limit_s"] for limit in answer["limits"])
    for row in answer["broken"]:
        assert not row["holds"]


def test_steps_of_a_combination_each_improve_it(found: lv.Advice) -> None:
    before = found.result
    for step in found.steps:
        assert found.goal.is_better(step.result, before)
        before = step.result
    words: dict[str, Any] = {}
    for step in found.steps:
        words |= step.words
    assert found.words == words


def test_nothing_refused_is_advised() -> None:
    # an A100 has neither fp8 nor fp4 units, an M2 Ultra no links, DeepSeek-V3 is stored in fp8 already
    a100 = {(row["option"], row["value"]) for row in lv.advise(MODEL, "a100", **SMALL).to_dict()["advice"]}
    assert not {("quantization", "fp8"), ("quantization", "nvfp4")} & a100
    assert not lv.advise(MODEL, "m2-ultra", **SMALL).more_devices
    stored = lv.advise("deepseek-v3", "h200", tensor_parallel_size=8, **SMALL).to_dict()
    assert "quantization" not in {row["option"] for row in stored["advice"]}


def test_the_best_change_of_analyze_is_the_same_trial() -> None:
    one = api.configuration("llama-3.1-8b", "h100")
    request = api.request(1, 1024, 128)
    of_verdict = {change.option: change.result.tpot_s for change in verdict(one, request, one.answer(request)).changes}
    rows = {change.option: change.result.tpot_s for change in lv.advise("llama-3.1-8b", "h100").changes}
    shared = of_verdict.keys() & rows.keys()
    assert {"--quantization fp8", "--quantization w4a16"} <= shared
    assert all(of_verdict[name] == pytest.approx(rows[name], rel=1e-12) for name in shared)


def test_more_devices_only_where_asked_or_needed() -> None:
    words: dict[str, Any] = {"metric": "ttft_s", "input_len": 8192, "output_len": 2}
    one = lv.advise(MODEL, "h100", **words)
    assert {change.devices for change in one.changes} == {1}
    assert one.best.analysis.system.parallelism.devices == 1
    two = lv.advise(MODEL, "h100", max_gpus=2, **words)
    assert "-tp 2" in {change.option for change in two.changes}
    assert max(change.devices for change in two.changes) == 2
    needed = lv.advise(MODEL, "h100", ttft=0.8 * float(one.best.ttft_s), **words)
    assert needed.holds and needed.best.analysis.system.parallelism.devices > 1


@pytest.mark.slow
def test_more_devices_where_no_format_fits_one() -> None:
    needed = lv.advise("llama-3.1-70b", "a100-40gb-sxm", quantization="fp8", metric="ttft_s", ttft="100ms", **SMALL)
    assert not lv.analyze("llama-3.1-70b", "a100-40gb-sxm", quantization="w4a16", **SMALL).fits
    assert needed.holds and needed.best.analysis.system.parallelism.devices > 1


def test_no_change_takes_more_devices_than_allowed() -> None:
    words = {"metric": "tpot_s", "output_len": 8}
    free, bound = (lv.advise("llama-3.3-70b", "h100", max_gpus=most, **words) for most in (None, 1))
    assert {one.devices for one in free.more_devices} == {2, 4, 8}
    assert bound.more_devices == ()
    assert bound.tried == free.tried - 3, "-tp 2, 4 and 8 are not tried"


def test_limits_bound_the_batch_of_the_best_throughput() -> None:
    words = {"metric": "output_tokens_per_s", **SMALL}
    free, bound = lv.advise(MODEL, "h100", **words), lv.advise(MODEL, "h100", tpot="2ms", **words)
    assert free.best.tpot_s > 0.002 >= bound.best.tpot_s
    assert free.best.output_tokens_per_s > bound.best.output_tokens_per_s > bound.result.output_tokens_per_s


def test_a_plan_of_offloading_is_made_anew_after_the_format_of_weights() -> None:
    """Bf16 weights of a 70B are 141 GB, six times an RTX 4090; 8 bits leave less than half of the rest on the host."""
    found = lv.advise("llama-3.1-70b", "rtx-4090", max_gpus=1, **SMALL)
    offload, quantized = (step.option for step in found.steps[:2])
    assert offload == "--offload flexgen,compute=host" and quantized.startswith("--quantization ")
    first, second = (float(step.result.memory["host_bytes"]) for step in found.steps[:2])
    assert second < first / 2.0 and found.holds
    assert found.to_dict()["advice"][0]["gain"] is None, "no gain over a run that does not fit"


def test_limits_that_nothing_meets_exit_1_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", MODEL, "--hardware", "h100", "--tpot", "1us"]) == 1
    words = " ".join(capsys.readouterr().out.split())
    assert "nothing that was tried meets the limits; nearest: " in words
    assert re.search(r"TPOT [\d.]+ µs, limit 1.00 µs: \+\d", words)


def test_a_met_limit_exits_0_and_a_command_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", MODEL, "--hardware", "h100", "--tpot", "1s", "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert answer["schema"] == "llmviewer.advice/1"
    assert {"option", "value", "then", "interval80", "risk", "source"} <= answer["advice"][0].keys()
    assert main(shlex.split(answer["combination"]["command"])[1:]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--ttft p99:1s", "--ttft is 'p99:1s'; allowed: a time such as 80ms"),
        ("--tpot soon", "--tpot is 'soon'"),
        ("--tpot 0s", "--tpot is '0s'"),
        ("--metric speed", "--metric: unknown metric 'speed'"),
        ("--max-gpus 0", "--max-gpus is 0"),
        ("--output-len 1", "tpot_s has no value here"),
        ("--quantization w99", "--quantization: unknown quantization 'w99'"),
        ("--batch-size 0", "--batch-size is 0"),
    ],
)
def test_wrong_input_is_told_in_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", MODEL, "--hardware", "h100", *words.split()]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"error: {message}") and error.count("\n") == 1


def test_every_published_risk_has_a_page_and_formats_that_are_tried_have_one() -> None:
    rows = data.read_yaml(accuracy.FILE)["entries"]
    assert all(row["source"].startswith("https://") for row in rows)
    for option, values in NUMBER_FORMATS.items():
        assert all(accuracy.risk(option, value).source for value in values)
    assert accuracy.risk("speculative", "eagle3,tokens=3").text.startswith("none")
    assert accuracy.risk("quantization", "w2a16").text == accuracy.UNKNOWN
    assert accuracy.risk("fusion", "all") == accuracy.Risk(text=accuracy.NO_RISK)


def test_speculation_is_tried_with_acceptance_of_the_model_alone() -> None:
    assert _is_target(PRESETS["eagle3-llama-3.1-8b-chain"], "llama-3.1-8b")
    assert not _is_target(PRESETS["eagle3-llama-3.1-8b-chain"], "llama-3.1-70b")
    assert _is_target(PRESETS["eagle3-kimi-k2.5"], "kimi-k2.5")
    options = {row["option"] for row in lv.advise(MODEL, "h100", **SMALL).to_dict()["advice"]}
    assert "speculative" not in options


def test_a_trial_changes_options_and_sizes_and_refuses_what_is_not_supported() -> None:
    one, request = api.configuration(MODEL, "m2-ultra"), api.request(2, 64, 4)
    assert tried(one, request, {"batch_size": 2}) is None, "as it is"
    assert tried(one, request, {"tensor_parallel_size": 2}) is None, "no link"
    change = tried(one, request, {"batch_size": 4, "quantization": "w4a16"})
    assert change is not None and change.option == "--batch-size 4 --quantization w4a16"
    assert (
        change.result.tpot_s
        == lv.analyze(MODEL, "m2-ultra", batch_size=4, input_len=64, output_len=4, quantization="w4a16").tpot_s
    )
    made, sizes = changed(one, request, {"max_num_batched_tokens": 32})
    assert made.token_budget == 32 and sizes.batch_size == request.batch_size
