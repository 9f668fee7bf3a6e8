"""Files of benchmark programs against predictions: told apart by content, completed by options, one line for errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmviewer import api
from llmviewer.calibrate.readers import files
from llmviewer.calibrate.readers.run import Stated
from llmviewer.cli import main
from llmviewer.core.errors import UserError

pd = pytest.importorskip("pandas")
H100 = Stated(hardware="h100-sxm")
#: `vllm bench serve --save-result`: 200 requests of 1024 + 128 tokens, at most 32 at once.
VLLM = {
    "date": "20250901-120000", "endpoint_type": "vllm", "backend": "vllm", "label": None,
    "model_id": "meta-llama/Llama-3.1-8B-Instruct", "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 200, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 32, "duration": 61.0,
    "completed": 200, "failed": 0, "total_input_tokens": 204800, "total_output_tokens": 25600,
    "request_throughput": 3.28, "request_goodput": None, "output_throughput": 419.7, "mean_ttft_ms": 180.0,
    "median_ttft_ms": 170.0, "p99_ttft_ms": 400.0, "mean_tpot_ms": 14.0, "mean_itl_ms": 14.0,
}  # fmt: skip
#: `python -m sglang.bench_serving --output-file`: it does not state the model.
SGLANG = {
    "backend": "sglang", "dataset_name": "random", "request_rate": 4.0, "max_concurrency": None, "duration": 50.0,
    "completed": 200, "total_input_tokens": 100000, "total_output_tokens": 20000,
    "total_output_tokens_retokenized": 19990, "output_throughput": 400.0, "mean_e2e_latency_ms": 2000.0,
    "mean_ttft_ms": 60.0, "mean_tpot_ms": 19.6, "accept_length": None, "concurrency": 8.0,
}  # fmt: skip
#: profile_export_aiperf.json.
AIPERF = {
    "schema_version": "1.0",
    "input_config": {"endpoint": {"model_names": ["meta-llama/Llama-3.1-8B"]}, "loadgen": {"concurrency": 4}},
    "request_throughput": {"unit": "requests/sec", "avg": 2.0},
    "request_latency": {"unit": "ms", "avg": 1500.0, "p99": 1600.0, "count": 40},
    "time_to_first_token": {"unit": "ms", "avg": 40.0, "p99": 60.0},
    "inter_token_latency": {"unit": "ms", "avg": 7.4, "p99": 8.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 400.0},
    "output_sequence_length": {"unit": "tokens", "avg": 200.0},
    "input_sequence_length": {"unit": "tokens", "avg": 550.0},
    "request_count": {"unit": "requests", "avg": 40.0},
}
#: `llama-bench -o json`: a prompt of 512 tokens, and 128 tokens without a prompt.
LLAMA_BENCH = [
    {
        "build_commit": "8cf427ff", "build_number": 5163, "gpu_info": "NVIDIA GeForce RTX 4090", "backends": "CUDA",
        "model_filename": "models/Llama-3.1-8B-Instruct-Q4_K_M.gguf", "model_type": "llama 8B Q4_K - Medium",
        "n_gpu_layers": 99, "split_mode": "layer", "type_k": "f16", "type_v": "f16", "n_prompt": prompt,
        "n_gen": generated, "n_depth": 0, "avg_ns": 1, "avg_ts": rate, "stddev_ts": 0.4,
    }
    for prompt, generated, rate in ((512, 0, 11000.0), (0, 128, 150.0))
]  # fmt: skip
LATENCY = {"avg_latency": 1.2, "std_latency": 0.01, "latencies": [1.2], "percentiles": {"50": 1.2}}
THROUGHPUT = {
    "elapsed_time": 20.0, "num_requests": 100, "total_num_tokens": 60000, "requests_per_second": 5.0,
    "tokens_per_second": 3000.0,
}  # fmt: skip


def write(folder: Path, content: Any, name: str = "result") -> Path:
    """A file whose name says nothing about its format."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def rows(folder: Path, content: Any, stated: Stated = H100) -> list[dict[str, Any]]:
    return list(files.table(write(folder, content), stated).frame.to_dict("records"))


def by_metric(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return {row["metric"]: row[name] for row in found}


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["calibrate", "validate", *map(str, words), "--format", "json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def error_line(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([*map(str, words)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_mean_lengths_are_total_tokens_over_completed_requests(tmp_path: Path) -> None:
    """204,800 / 200 = 1024 and 25,600 / 200 = 128, also if two of 202 requests failed."""
    found = rows(tmp_path, {**VLLM, "num_prompts": 202})
    assert {(row["input_len"], row["output_len"], row["batch"]) for row in found} == {(1024.0, 128.0, 32.0)}
    assert by_metric(found, "value") == {"ttft_ms": 180.0, "tpot_ms": 14.0, "throughput_tok_s": 419.7}
    assert {(row["model"], row["preset"], row["batching"]) for row in found} == {
        ("meta-llama/Llama-3.1-8B-Instruct", "vllm", "continuous")
    }


def test_concurrency_at_a_finite_rate_follows_from_littles_law(tmp_path: Path) -> None:
    """vLLM: 200 / 61 s x (180 + 127 x 14 ms) = 6.42; SGLang: 200 / 50 s x 2 s = 8."""
    vllm = rows(tmp_path, {**VLLM, "request_rate": 3.3, "max_concurrency": None})
    assert vllm[0]["batch"] == pytest.approx(200 / 61 * (0.180 + 127 * 0.014))
    sglang = rows(tmp_path, SGLANG, Stated(hardware="h100-sxm", model="llama-3.1-8b"))
    assert {row["batch"] for row in sglang} == {8.0}
    assert "mean latency" in sglang[0]["note"]
    limited = rows(tmp_path, {**VLLM, "request_rate": 3.3, "max_concurrency": 4})
    assert limited[0]["batch"] == 4.0


def test_the_prediction_of_a_file_is_that_of_analyze(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, write(tmp_path, VLLM), "--hardware", "h100-sxm")
    same = api.analyze(
        "llama-3.1-8b", "h100-sxm", batch_size=32, input_len=1024, output_len=128, efficiency="calibrated",
        engine="vllm", batching="continuous",
    )  # fmt: skip
    predicted = {figure["metric"]: figure["predicted"] for figure in document["figures"]}
    assert predicted["tpot_ms"] == pytest.approx(float(same.analysis.tpot_s[0]) * 1e3)


@pytest.mark.parametrize(
    ("tpot_ms", "rate", "verdicts"),
    [
        (140.0, 41.97, {"tpot_ms": "slower", "throughput_tok_s": "slower"}),
        (1.4, 41970.0, {"tpot_ms": "faster", "throughput_tok_s": "faster"}),
    ],
)
def test_a_figure_outside_its_interval_is_slower_or_faster(
    tpot_ms: float, rate: float, verdicts: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A long time is slow, and a high rate is fast."""
    path = write(tmp_path, {**VLLM, "mean_tpot_ms": tpot_ms, "output_throughput": rate})
    figures = {figure["metric"]: figure for figure in answer(capsys, path, "--hardware", "h100-sxm")["figures"]}
    assert {name: figures[name]["verdict"] for name in verdicts} == verdicts
    low, high = figures["tpot_ms"]["interval_80"]
    assert low <= figures["tpot_ms"]["predicted"] <= high
    assert figures["tpot_ms"]["difference"] == pytest.approx(tpot_ms / figures["tpot_ms"]["predicted"] - 1.0)
    assert main(["calibrate", "validate", str(path), "--hardware", "h100-sxm"]) == 0
    text = capsys.readouterr().out
    assert f"{verdicts['tpot_ms'].capitalize()}: TPOT" in text


def test_an_option_replaces_what_the_file_states(tmp_path: Path) -> None:
    stated = Stated(hardware="h200", model="llama-3.3-70b", engine="sglang", tensor_parallel_size=4, batch_size=7)
    (row, *_) = rows(tmp_path, VLLM, stated)
    assert (row["device"], row["model"], row["preset"], row["tp"], row["batch"]) == (
        "h200", "llama-3.3-70b", "sglang", 4, 7.0,
    )  # fmt: skip


def test_quantization_changes_the_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, VLLM)
    plain, fp8 = (
        {
            figure["metric"]: figure["predicted"]
            for figure in answer(capsys, path, "--hardware", "h100", *words)["figures"]
        }
        for words in ((), ("--quantization", "fp8"))
    )
    assert fp8["tpot_ms"] < 0.9 * plain["tpot_ms"]


def test_every_line_of_json_lines_is_a_run(tmp_path: Path) -> None:
    text = "\n".join(json.dumps({**SGLANG, "completed": n, "duration": 50.0}) for n in (100, 200))
    found = rows(tmp_path, text, Stated(hardware="h100-sxm", model="llama-3.1-8b"))
    assert {row["input_len"] for row in found} == {1000.0, 500.0}


def test_aiperf_states_model_and_concurrency_and_not_the_engine(tmp_path: Path) -> None:
    found = rows(tmp_path, AIPERF, Stated(hardware="h100-sxm", engine="vllm"))
    assert {(row["model"], row["batch"], row["input_len"], row["output_len"]) for row in found} == {
        ("meta-llama/Llama-3.1-8B", 4.0, 550.0, 200.0)
    }
    assert by_metric(found, "value") == {
        "ttft_ms": 40.0, "tpot_ms": 7.4, "latency_ms": 1500.0, "throughput_tok_s": 400.0,
    }  # fmt: skip
    with pytest.raises(UserError, match="does not state the engine: add engine NAME"):
        rows(tmp_path, AIPERF)


@pytest.mark.parametrize(
    ("config", "batch"),
    [
        ({"model_names": ["llama-3.1-8b"], "perf_analyzer": {"stimulus": {"concurrency": 16}}}, 16.0),
        ({"model": "llama-3.1-8b", "concurrency": [8]}, 8.0),
        ({"models": {"items": [{"name": "llama-3.1-8b"}]}}, 3.0),  # 2 requests a second x 1.5 s
    ],
)
def test_versions_of_genai_perf_differ_in_where_they_state_it(
    config: dict[str, Any], batch: float, tmp_path: Path
) -> None:
    (row, *_) = rows(tmp_path, {**AIPERF, "input_config": config}, Stated(hardware="h100-sxm", engine="vllm"))
    assert (row["model"], row["batch"]) == ("llama-3.1-8b", batch)


def test_times_are_converted_from_their_unit(tmp_path: Path) -> None:
    stated = Stated(hardware="h100-sxm", engine="vllm")
    found = rows(tmp_path, {**AIPERF, "inter_token_latency": {"unit": "us", "avg": 7400.0}}, stated)
    assert by_metric(found, "value")["tpot_ms"] == pytest.approx(7.4)
    with pytest.raises(UserError, match="unit of inter_token_latency"):
        rows(tmp_path, {**AIPERF, "inter_token_latency": {"unit": "fortnights", "avg": 7.4}}, stated)


def as_csv(records: list[dict[str, Any]]) -> str:
    lines = [",".join(records[0])]
    lines += [",".join(f'"{value}"' for value in record.values()) for record in records]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "text", [json.dumps(LLAMA_BENCH), as_csv(LLAMA_BENCH), "\n".join(map(json.dumps, LLAMA_BENCH))]
)
def test_llama_bench_states_everything_but_a_known_name_of_the_chip(text: str, tmp_path: Path) -> None:
    """JSON, CSV and JSON lines give the same rows; format and model come from the name of the file it ran."""
    prompt, generation = rows(tmp_path, text, Stated())
    assert (prompt["metric"], prompt["value"], prompt["input_len"], prompt["output_len"]) == (
        "throughput_tok_s", 11000.0, 512.0, 0.0,
    )  # fmt: skip
    assert (generation["metric"], generation["value"], generation["input_len"], generation["output_len"]) == (
        "decode_tok_s", 150.0, 0.0, 128.0,
    )  # fmt: skip
    for row in (prompt, generation):
        assert (row["device"], row["model"], row["weight_dtype"], row["preset"], row["batch"]) == (
            "rtx-4090", "Llama-3.1-8B-Instruct", "q4_k_m", "llama.cpp", 1.0,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "weights"),
    [
        ({"model_filename": "Llama-3.1-8B-Instruct-Q4_K_M-00001-of-00003.gguf"}, "q4_k_m"),
        ({"model_filename": "D:\\m\\Llama-3.1-8B-Instruct-UD-Q4_K_M.gguf"}, "q4_k_m"),
        ({"n_gpu_layers": -1, "n_cpu_moe": 0, "no_kv_offload": False, "tensor_buft_overrides": "none"}, "q4_k_m"),
    ],
)
def test_names_of_parts_and_defaults_of_newer_versions_are_read(
    change: dict[str, Any], weights: str, tmp_path: Path
) -> None:
    """A part of a split file, a mixed format of Unsloth, and -1 for all layers."""
    (row,) = rows(tmp_path, [{**LLAMA_BENCH[1], **change}], Stated())
    assert (row["model"], row["weight_dtype"], row["device"]) == ("Llama-3.1-8B-Instruct", weights, "rtx-4090")


@pytest.mark.parametrize("change", [{"n_cpu_moe": 8}, {"no_kv_offload": True}, {"tensor_buft_overrides": "exps=CPU"}])
def test_a_run_with_parts_on_the_processor_is_not_predicted(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="what runs on the processor is not predicted"):
        rows(tmp_path, [{**LLAMA_BENCH[1], **change}], Stated())


def test_a_limit_of_requests_at_a_finite_rate_is_no_concurrency(tmp_path: Path) -> None:
    """2 requests a second of 1.5 s each are 3 at once, below the limit of 4."""
    config = {**AIPERF["input_config"], "loadgen": {"concurrency": 4, "request_rate": 2.0}}
    (row, *_) = rows(tmp_path, {**AIPERF, "input_config": config}, Stated(hardware="h100-sxm", engine="vllm"))
    assert row["batch"] == 3.0


def test_an_infinite_rate_is_the_word_that_python_writes(tmp_path: Path) -> None:
    """SGLang's default rate is a float; json.dumps writes it as Infinity, and requests are then only limited."""
    text = json.dumps({**SGLANG, "request_rate": float("inf"), "max_concurrency": 16})
    assert '"request_rate": Infinity' in text
    found = rows(tmp_path, text, Stated(hardware="h100-sxm", model="llama-3.1-8b"))
    assert {row["batch"] for row in found} == {16.0}


def test_a_llama_bench_file_needs_no_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = answer(capsys, write(tmp_path, LLAMA_BENCH))["figures"]
    assert [figure["metric"] for figure in figures] == ["throughput_tok_s", "decode_tok_s"]
    assert all(figure["predicted"] > 0 for figure in figures)


def test_tokens_after_a_prefilled_context_are_steps_over_it(tmp_path: Path) -> None:
    """128 tokens at depth 4096 and 100 tokens/s: steps of 10 ms, over 4096 tokens and those before them."""
    (row,) = rows(tmp_path, [{**LLAMA_BENCH[1], "n_depth": 4096, "avg_ts": 100.0}], Stated())
    assert (row["metric"], row["value"], row["input_len"], row["output_len"]) == ("tpot_ms", 10.0, 4096.0, 129.0)


def test_a_run_that_is_not_predicted_is_named_and_the_others_are_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = answer(
        capsys,
        write(tmp_path, [{**LLAMA_BENCH[0], "n_depth": 512}, {**LLAMA_BENCH[1], "n_gpu_layers": 10}, LLAMA_BENCH[1]]),
    )
    assert len(document["figures"]) == 1
    reasons = " ".join(document["not_predicted"])
    assert "a prompt after 512 cached tokens" in reasons
    assert "10 of 32 layers ran on the device" in reasons
    assert sum(document["not_predicted"].values()) == 2


def test_a_static_batch_needs_its_sizes(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        rows(tmp_path, LATENCY, Stated())
    assert str(raised.value).endswith(
        "(vllm bench latency) does not state the chip, the model, the number of concurrent requests, the prompt "
        "length, the output length: add hardware NAME model NAME batch_size N input_len N output_len N"
    )
    sizes = Stated(hardware="h100-sxm", model="llama-3.1-8b", batch_size=8, input_len=32, output_len=128)
    (row,) = rows(tmp_path, LATENCY, sizes)
    assert (row["metric"], row["value"], row["batching"]) == ("latency_ms", 1200.0, "static")


def test_throughput_counts_output_tokens(tmp_path: Path) -> None:
    """5 requests a second of 128 output tokens are 640 tokens a second."""
    sizes = Stated(hardware="h100-sxm", model="llama-3.1-8b", input_len=472, output_len=128)
    (row,) = rows(tmp_path, THROUGHPUT, sizes)
    assert (row["metric"], row["value"], row["batch"]) == ("throughput_tok_s", 640.0, 100.0)


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (VLLM, (), "does not state the chip: add --hardware NAME"),
        (VLLM, ("--hardware", "h999"), "unknown chip 'h999'"),
        ({**VLLM, "model_id": "acme/own"}, ("--hardware", "h100"), "--model NAME replaces what"),
        (VLLM, ("--hardware", "h100", "--engine", "nosuch"), "unknown engine 'nosuch'"),
        (VLLM, ("--hardware", "h100", "--quantization", "fp3"), "fp3"),
        (VLLM, ("--hardware", "h100", "-tp", "3"), "3"),
        ({**VLLM, "completed": 0}, ("--hardware", "h100"), "no request of this run was completed"),
        ({**VLLM, "spec_decode_acceptance_length": 2.5}, ("--hardware", "h100"), "speculative decoding (2.5 tokens"),
        ({**SGLANG, "backend": "lmdeploy"}, ("--hardware", "h100"), "the model, the engine: add --model NAME --engine"),
        ([{**LLAMA_BENCH[0], "gpu_info": "Acme 9000"}], (), "--hardware NAME replaces what"),
        ([{**LLAMA_BENCH[0], "model_filename": "Llama-3.1-8B-IQ2_XXS.gguf"}], (), "add --quantization NAME"),
        ({"results": [1, 2]}, (), "the fields of no benchmark that is read: vllm bench serve"),
        ([1, 2], (), "something other than records"),
        ('{"completed": ', (), "cannot be read as JSON"),
    ],
)
def test_what_is_missing_or_unknown_is_one_line(
    content: Any, words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_line(capsys, "calibrate", "validate", write(tmp_path, content), *words)


def test_options_of_a_benchmark_are_refused_for_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write(tmp_path, "device,op,dtype,tokens,width,latency_us\nh100_sxm,add,bfloat16,64,4096,9\n", "t.csv")
    line = error_line(capsys, "calibrate", "validate", table, "--engine", "vllm", "-tp", 2)
    assert "--engine, -tp: only files of benchmark programs take it" in line


def test_a_benchmark_is_not_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = error_line(capsys, "calibrate", "fit", write(tmp_path, VLLM), "-o", tmp_path / "profile.yaml")
    assert "contains whole requests, which are never fitted" in line


def test_a_model_and_a_chip_of_ones_own_are_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fine-tuned model's folder and a copy of a chip's file give the numbers of the originals."""
    from llmviewer.core import data

    config = data.read_yaml(data.folder("model_configs") / "llama-3.1-8b.yaml")["config"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    chip = tmp_path / "own_chip.yaml"
    chip.write_text((data.folder("hardware_specs") / "l40s.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    path = write(tmp_path, VLLM)
    own = answer(capsys, path, "--hardware", chip, "--model", tmp_path / "mine")["figures"]
    same = answer(capsys, path, "--hardware", "l40s")["figures"]
    assert [figure["predicted"] for figure in own] == [figure["predicted"] for figure in same]


def test_no_extra_is_needed(tmp_path: Path) -> None:
    """The packages of the extra `calibrate` cannot be imported, and the file is validated all the same."""
    path = write(tmp_path, VLLM)
    script = (
        "import sys\n"
        "for name in ('torch', 'scipy', 'pyarrow'): sys.modules[name] = None\n"
        "from llmviewer.cli import main\n"
        f"sys.exit(main(['calibrate', 'validate', {str(path)!r}, '--hardware', 'h100-sxm']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "TPOT" in done.stdout


def test_parity_draws_a_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows drawn are those of validate; options of the plot state what the file does not."""
    from llmviewer.cli.plot import given

    path, picture = write(tmp_path, VLLM), tmp_path / "parity.png"
    assert main(["plot", "parity", str(path), "--hardware", "h200", "-tp", "2", "-o", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    options = {"hardware": "h200", "tensor_parallel_size": "2", "engine": "kernels", "batch_size": ""}
    drawn = given.parity_rows(str(path), options)
    judged = answer(capsys, path, "--hardware", "h200", "-tp", "2")["figures"]
    assert list(drawn["predicted"]) == [figure["predicted"] for figure in judged]
    assert set(drawn["preset"]) == {"vllm"}


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (VLLM, (), "does not state the chip: add --hardware NAME"),
        (SGLANG, ("--hardware", "h100"), "add --model NAME to `llmviewer calibrate validate FILE -o rows.csv`"),
        (VLLM, ("--hardware", "h100", "--batch-size", "1,2"), "batch-size is '1,2'; allowed: whole numbers"),
    ],
)
def test_parity_of_an_incomplete_benchmark_is_one_line(
    content: Any, words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "parity.png"
    assert message in error_line(capsys, "plot", "parity", write(tmp_path, content), *words, "-o", picture)
    assert not picture.exists()
