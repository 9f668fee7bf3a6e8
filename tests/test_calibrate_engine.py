"""`calibrate engine`: a preset corrected by a server's own results, and the engine file that it writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core import files as core_files
from llmviewer.core.errors import UserError
from llmviewer.timing import engine as engines
from llmviewer.timing.engine_scope import OTHER_SHARE

pytest.importorskip("pandas")
pytest.importorskip("scipy")

from llmviewer.calibrate import own_engine, server_fit
from llmviewer.calibrate.e2e_rows import RequestCase, case_of
from llmviewer.calibrate.fit_engines import make_trials
from llmviewer.calibrate.readers import files, torch_profiler
from llmviewer.calibrate.readers.run import Stated
from tests.test_profiler_tables import GPU, table, write

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
CONFIGURATION = "llama-3.1-8b, 15 GiB of weights on a device"
STATED = Stated(hardware="h100-sxm")
#: A server whose host takes twice as long for a step, and whose products take 10 % longer, than those of the preset.
SLOWER = {"step": np.log(2.0), "gemm": np.log(1.1)}
LOADS = ((1, 512), (4, 2048), (16, 1024), (64, 1024), (128, 512))


def cases_of(loads: tuple[tuple[int, int], ...], model: str = MODEL) -> dict[int, RequestCase]:
    """First and further tokens of users who come and go."""
    row = {"device": "h100-sxm", "model": model, "engine": "vllm", "preset": "vllm", "batching": "continuous"}
    sizes = [(*load, metric) for load in loads for metric in ("ttft_ms", "tpot_ms")]
    return {
        at: case_of({**row, "batch": users, "input_len": prompt, "output_len": 128, "metric": metric})
        for at, (users, prompt, metric) in enumerate(sizes)
    }


def served(logs: Mapping[str, float], loads: tuple[tuple[int, int], ...] = LOADS) -> dict[tuple[int, int], list[float]]:
    """(users, prompt) -> TTFT and TPOT [ms] of a server with these changes of the preset, without any noise."""
    cases = cases_of(loads)
    found = np.zeros(len(cases))
    for trial in make_trials(cases, np.ones(len(cases))):
        preset = server_fit.with_logs(trial.group.analysis.system.engine, logs)
        found[list(trial.group.places)] = trial.group.values(trial.times(preset))
    return {load: found[2 * at : 2 * at + 2].tolist() for at, load in enumerate(loads)}


def result(users: int, prompt: int, times_ms: list[float], **more: Any) -> dict[str, Any]:
    """A result of `vllm bench serve --save-result`."""
    return {
        "backend": "vllm", "model_id": MODEL, "request_rate": "inf", "max_concurrency": users, "duration": 60.0,
        "completed": 1000, "total_input_tokens": 1000 * prompt, "total_output_tokens": 128_000,
        "mean_ttft_ms": times_ms[0], "mean_tpot_ms": times_ms[1], **more,
    }  # fmt: skip


def saved(folder: Path, runs: Mapping[tuple[int, int], list[float]], **more: Any) -> list[Path]:
    """A file for each run."""
    paths = [folder / f"{users}-{prompt}.json" for users, prompt in runs]
    for path, ((users, prompt), times) in zip(paths, runs.items(), strict=True):
        path.write_text(json.dumps(result(users, prompt, times, **more)))
    return paths


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The engine file of the slower server, and what the command prints."""
    folder = tmp_path_factory.mktemp("server")
    made = own_engine.calibrate(saved(folder, served(SLOWER)), STATED, "mine.yaml")
    (folder / "mine.yaml").write_text(made.text)
    return folder / "mine.yaml", made.document


def test_results_without_noise_lead_back_to_their_server(fitted: tuple[Path, dict[str, Any]]) -> None:
    _, document = fitted
    assert document["rows"] == 10
    for one in document["metrics"]:
        assert one["after"]["median"] < 0.4 * one["before"]["median"] or one["after"]["median"] < 0.01
    constants = {one["constant"]: one for one in document["constants"]}
    assert constants["step"]["before"] == pytest.approx(715.3)
    assert 1.3 * 715.3 < constants["step"]["after"] < 2.1 * 715.3  # its prior is the preset's, from which it is drawn
    assert constants["gemm"]["after"] == pytest.approx(1.1, abs=0.05)


@pytest.mark.parametrize("logs", [{"step": -0.5}, {"request": 0.8, "gemm": 0.15}, {"attention": 0.4, "prompt": 0.2}])
def test_a_perturbed_preset_predicts_loads_that_were_not_measured(tmp_path: Path, logs: dict[str, float]) -> None:
    other = ((8, 1024), (32, 768))
    made = own_engine.calibrate(saved(tmp_path, served(logs)), STATED, "mine.yaml")
    (tmp_path / "mine.yaml").write_text(made.text)
    for (users, prompt), (ttft, tpot) in served(logs, other).items():
        sizes = {"batch_size": users, "input_len": prompt, "output_len": 128, "batching": "continuous"}
        answer = lv.analyze("llama-3.1-8b", "h100-sxm", engine=str(tmp_path / "mine.yaml"), **sizes)
        assert answer.ttft_s * 1e3 == pytest.approx(ttft, rel=0.10)
        assert answer.tpot_s * 1e3 == pytest.approx(tpot, rel=0.03)


def test_every_further_run_makes_constants_more_certain(tmp_path: Path) -> None:
    paths = saved(tmp_path, served(SLOWER))
    before: dict[str, float] = {}
    for count in (1, 2, 5):
        made = own_engine.calibrate(paths[:count], STATED, "mine.yaml").document
        spreads = {one["constant"]: one["spread"] for one in made["constants"] if one["rows"]}
        assert all(spreads[name] <= spread + 0.02 for name, spread in before.items())
        before = spreads


def test_constants_that_no_row_depends_on_stay_the_presets(fitted: tuple[Path, dict[str, Any]]) -> None:
    path, document = fitted
    kept = {one["constant"]: one for one in document["constants"] if not one["rows"]}
    assert "exchange" in kept and kept["exchange"]["after"] == 1.0 and kept["exchange"]["spread"] is None
    assert "exchange" not in yaml.safe_load(path.read_text())["factors"]


def test_one_run_gives_a_level_and_no_error_of_held_out_runs(tmp_path: Path) -> None:
    made = own_engine.calibrate(saved(tmp_path, served(SLOWER, ((16, 1024),))), STATED, "mine.yaml")
    assert made.document["runs"] == 1
    assert [one["after"] for one in made.document["metrics"]] == [None, None]
    (tmp_path / "mine.yaml").write_text(made.text)
    sizes = {"batch_size": 16, "input_len": 1024, "output_len": 128, "batching": "continuous"}
    wanted = served(SLOWER, ((16, 1024),))[16, 1024][1]
    own, preset = (
        lv.analyze("llama-3.1-8b", "h100-sxm", engine=name, **sizes).tpot_s * 1e3
        for name in (str(tmp_path / "mine.yaml"), "vllm")
    )
    assert abs(own - wanted) < 0.3 * abs(preset - wanted)


def test_the_file_holds_for_what_was_measured_and_is_trusted_less_beyond(fitted: tuple[Path, dict[str, Any]]) -> None:
    path, document = fitted
    assert document["configurations"] == [CONFIGURATION]
    load = {"batch_size": 16, "input_len": 1024, "output_len": 128, "batching": "continuous", "engine": str(path)}
    own = lv.analyze("llama-3.1-8b", "h100-sxm", **load)
    divided = lv.analyze("llama-3.1-8b", "h100-sxm", tensor_parallel_size=2, **load)
    nearby = lv.analyze("llama-3.1-8b", "h200", **load)
    far = lv.analyze("llama-3.1-8b", "a100-80gb-sxm", **load)

    def width(answer: Any) -> float:
        low, high = answer.to_dict()["metrics"]["intervals"]["tpot_s"]["80"]
        return float(np.log(high / low))

    assert width(own) < width(divided) and width(own) < width(nearby)
    assert any("calibrate engine: 10 figures of 5 runs" in text for text in own.to_dict()["provenance"]["assumed"])
    assert any("model, formats or layout" in text for text in divided.to_dict()["provenance"]["assumed"])
    assert any("fitted on a chip of generation hopper" in text for text in far.warnings)
    assert far.tpot_s == lv.analyze("llama-3.1-8b", "a100-80gb-sxm", **load | {"engine": "vllm"}).tpot_s


def own_file(**more: Any) -> dict[str, Any]:
    """The content of an engine file."""
    content = {"base": "vllm", "generation": "hopper", "configurations": [CONFIGURATION], "source": "5 rows"}
    return content | {"constants": {"step": 2861.2}, "factors": {"gemm": 1.21}} | more


def loaded(folder: Path, **more: Any) -> engines.Engine:
    """The engine of a file."""
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(own_file(**more)))
    return engines.load(str(path))


def test_another_configuration_takes_a_share_of_the_change(tmp_path: Path) -> None:
    from llmviewer.hardware import specs

    chip = specs.load("h100-sxm")
    read = loaded(tmp_path).on(chip)
    same, other = read.of_server(chip, CONFIGURATION), read.of_server(chip, "another model, 15 GiB")
    assert same.constants["step"] == pytest.approx(2861.2) and same.beyond == ""
    assert other.constants["step"] == pytest.approx(715.3 * 4.0**OTHER_SHARE, rel=1e-4)
    assert other.factors["gemm"] == pytest.approx(1.21**OTHER_SHARE)
    assert same.constants["sequence"] == read.constants["sequence"]
    assert same.factors["prompt"] == read.factors["prompt"]


def test_a_file_is_named_by_its_path_and_has_the_preset_beneath(tmp_path: Path) -> None:
    read = loaded(tmp_path, base="vllm==0.12.0")
    assert (read.name, read.version) == ("vllm", "0.12.0")
    assert read.asked == str(tmp_path / "own.yaml") and read.called.endswith("own.yaml (vLLM 0.12.0)")
    assert engines.preset_and_version(read.asked) == ("vllm", "0.12.0")


def test_a_file_is_read_again_after_it_has_changed(tmp_path: Path) -> None:
    times = []
    for step in (1000.0, 30000.0):
        path = loaded(tmp_path, constants={"step": step}).asked
        times.append(lv.analyze("llama-3.1-8b", "h100-sxm", engine=path).tpot_s * 1e6)
    assert times[1] - times[0] == pytest.approx(29000.0, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"base": "vlm"}, "unknown engine 'vlm'"),
        ({"base": "other.yaml"}, "base: expected the name of a preset"),
        ({"constants": {"stepp": 1.0}}, "did you mean 'step'"),
        ({"factors": {"gemm": -1.0}}, "expected a finite number from 0"),
        ({"configurations": []}, "expected a list of 1 or more"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        loaded(tmp_path, **change)
    assert "\n" not in str(caught.value)


def test_visitors_of_a_server_name_no_files(tmp_path: Path) -> None:
    path = loaded(tmp_path).asked
    with core_files.only_package_data(), pytest.raises(UserError, match="only names of the catalogue"):
        lv.analyze("llama-3.1-8b", "h100-sxm", engine=path)


def refused(paths: list[Path], stated: Stated = STATED) -> str:
    """The one line in which a calibration is refused."""
    with pytest.raises(UserError) as caught:
        own_engine.calibrate(paths, stated, "mine.yaml")
    assert "\n" not in caught.value.marked
    return caught.value.marked


def test_what_cannot_be_fitted_is_refused_with_the_reason(tmp_path: Path) -> None:
    truth = served({}, ((16, 1024),))
    good = saved(tmp_path, truth)
    assert "no such file" in refused([tmp_path / "none.json"])
    assert "add --hardware NAME" in refused(good, Stated())
    assert "is an engine file" in refused(good, replace(STATED, engine="mine.yaml"))
    assert "--model llama-3.1-70b; remove one" in refused(good, replace(STATED, model="llama-3.1-70b"))
    again = tmp_path / "again.json"
    again.write_text(json.dumps(result(16, 1024, [one * 1.5 for one in truth[16, 1024]])))
    assert "an unstable server" in refused([*good, again])
    other = tmp_path / "other.json"
    other.write_text(json.dumps(result(4, 1024, truth[16, 1024], backend="sglang")))
    assert "several engines: sglang, vllm" in refused([*good, other])
    (tmp_path / "fast").mkdir()
    assert "less than 0.9 of the time" in refused(saved(tmp_path / "fast", {(16, 1024): [0.1, 0.1]}))


def test_a_figure_that_follows_from_others_is_not_counted_twice(tmp_path: Path) -> None:
    runs = served(SLOWER, ((16, 1024), (64, 1024)))
    made = own_engine.calibrate(
        saved(tmp_path, runs, output_throughput=900.0, mean_e2el_ms=2000.0), STATED, "mine.yaml"
    )
    assert [(one["metric"], one["rows"]) for one in made.document["metrics"]] == [("tpot_ms", 2), ("ttft_ms", 2)]


def test_the_command_writes_the_file_and_says_what_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [path.name for path in saved(tmp_path, served(SLOWER, ((1, 512), (64, 1024))))]
    assert main(["calibrate", "engine", *names, "--hardware", "h100-sxm", "-o", "mine.yaml"]) == 0
    told = capsys.readouterr().out
    assert "4 figures of 2 runs" in told and "kept" in told and "--engine mine.yaml" in told
    assert main(["analyze", "llama-3.1-8b", "--hardware", "h100-sxm", "--engine", "mine.yaml"]) == 0
    assert "mine.yaml (vLLM" in capsys.readouterr().out
    assert main(["calibrate", "engine", *names, "--hardware", "h100-sxm", "-o", "b.yaml", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == own_engine.SCHEMA


def test_a_profile_says_how_long_kernels_take(tmp_path: Path) -> None:
    runs = saved(tmp_path, served({}, ((1, 512), (64, 1024))))
    stated = replace(
        STATED, model="llama-3.1-8b", engine="vllm", batch_size=8, input_len=1024, stage="decode", passes=4
    )
    profile = write(tmp_path, table(GPU))
    predicted = torch_profiler.predict(profile, stated, None).set_index("metric")["predicted"]
    made = own_engine.calibrate([*runs, profile], stated, "mine.yaml").document
    assert made["kernels_in_traces"] == pytest.approx(
        {"gemm": 3.0 / predicted["gemm_ms"], "attention": 0.5 / predicted["attention_ms"]}
    )
    assert made["rows"] == 4 and made["files"][-1].endswith("2 figures")
    constants = {one["constant"]: one for one in made["constants"]}
    assert (constants["attention"]["after"] - 1.0) * (made["kernels_in_traces"]["attention"] - 1.0) > 0.0
    assert "a profile alone" in refused([profile], stated)


METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 6.0
vllm:num_requests_running{engine="1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 90.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 5.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 100.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 120.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 12700.0
vllm:request_prompt_tokens_sum{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 102400.0
vllm:request_prompt_tokens_count{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 100.0
vllm:request_generation_tokens_sum{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 12800.0
vllm:request_generation_tokens_count{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 100.0
"""


def test_a_snapshot_of_metrics_is_a_run(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    path.write_text(METRICS)
    assert files.is_benchmark(path)
    rows = {row["metric"]: row for row in files.table(path, STATED).frame.to_dict("records")}
    assert rows["ttft_ms"]["value"] == pytest.approx(50.0)  # 5 s over 100 requests
    assert rows["tpot_ms"]["value"] == pytest.approx(120e3 / 12700)
    sizes = {"batch": 8.0, "input_len": 1024.0, "output_len": 128.0}
    assert {name: rows["tpot_ms"][name] for name in sizes} == sizes
    path.write_text(METRICS.replace("} 6.0", "} 0.0").replace("} 2.0", "} 0.0"))
    with pytest.raises(UserError, match="does not state the number of concurrent requests"):
        files.table(path, STATED)


def test_one_batch_of_sglang_is_a_run(tmp_path: Path) -> None:
    path = tmp_path / "one_batch.jsonl"
    record = {"run_name": "default", "batch_size": 8, "input_len": 512, "output_len": 32, "prefill_latency": 0.05}
    record |= {"prefill_throughput": 8e4, "median_decode_latency": 0.008, "median_decode_throughput": 1000.0}
    path.write_text(json.dumps(record | {"total_latency": 0.3, "overall_throughput": 1.4e4}) + "\n")
    rows = files.table(path, replace(STATED, model=MODEL)).frame
    values = dict(zip(rows["metric"], rows["value"], strict=True))
    assert values == pytest.approx({"ttft_ms": 50.0, "tpot_ms": 8.0, "latency_ms": 300.0})
    assert {*rows["batching"]} == {"static"} and {*rows["engine"]} == {"sglang"}
