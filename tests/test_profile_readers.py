"""Files of profilers: kernels, launches and marks are read as they were written, and broken files are refused."""

from __future__ import annotations

import gzip
import json
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmviewer.calibrate.diagnosis.call import diagnose
from llmviewer.calibrate.diagnosis.readers import read
from llmviewer.calibrate.diagnosis.recording import Recording, Summary
from llmviewer.calibrate.diagnosis.requests import is_result
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from tests.answers import refusal
from tests.planted import CASES, as_trace, recorded, runs_of

LAUNCH = {
    "ph": "X",
    "cat": "cuda_runtime",
    "name": "cudaLaunchKernel",
    "ts": 5.0,
    "dur": 1.0,
    "args": {"correlation": 7},
}
PRODUCT = {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 4.0, "dur": 3.0,
    "args": {"External id": 3, "Input Dims": [[8, 16], [16, 32]]},
}  # fmt: skip
KERNEL = {
    "ph": "X", "cat": "kernel", "name": "nvjet", "ts": 10.0, "dur": 2.5,
    "args": {"device": 1, "stream": 7, "correlation": 7, "External id": 3},
}  # fmt: skip
OTHER = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "ts": 1.0, "dur": 0.5, "args": {"device": 0, "stream": 1}}
MARK = {"ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=8]", "ts": 0.0, "dur": 9.0, "args": {}}
DEVICES = [{"id": 0, "name": "zero"}, {"id": 1, "name": "one"}]


def _printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Output of a command that succeeds."""
    assert main(words) == 0
    return capsys.readouterr().out


def _written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_trace_of_torch_profiler_is_read(tmp_path: Path) -> None:
    trace = {"traceEvents": [MARK, LAUNCH, PRODUCT, KERNEL, OTHER], "deviceProperties": DEVICES}
    found = read(_written(tmp_path / "trace", trace))
    assert isinstance(found, Recording)
    (kernel,) = found.kernels
    assert (kernel.name, kernel.stream, kernel.operator, kernel.shape) == ("nvjet", 7, "aten::mm", (8.0, 16.0, 32.0))
    assert (kernel.start_s, kernel.seconds, kernel.launch_s) == pytest.approx((10e-6, 2.5e-6, 5e-6))
    assert [mark.name for mark in found.marks] == ["step[DECODE bs=8]"]
    assert found.device == "one"
    assert "2 devices are recorded: device 1, the busiest" in found.notes[0]


def test_a_packed_trace_is_the_same(tmp_path: Path) -> None:
    trace = {"traceEvents": [KERNEL]}
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(json.dumps(trace).encode()))
    assert read(packed) == read(_written(tmp_path / "plain", trace))


def test_a_trace_may_be_a_list_of_events(tmp_path: Path) -> None:
    path = _written(tmp_path / "trace.json", [KERNEL])
    assert not is_result(path)
    assert read(path) == read(_written(tmp_path / "object.json", {"traceEvents": [KERNEL]}))


def _export(path: Path, *, graphs: bool) -> Path:
    """An SQLite export with one kernel of 3 us, launched 8 us before, and a mark; graphs: a replayed graph too."""
    base = sqlite3.connect(path)
    base.executescript(
        """
        CREATE TABLE StringIds (id INTEGER, value TEXT);
        INSERT INTO StringIds VALUES (1, 'nvjet_tst'), (2, 'ncclDevKernel_AllReduce'), (3, 'step[DECODE bs=4]');
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
            correlationId INTEGER, demangledName INTEGER, shortName INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10000, 13000, 0, 7, 5, 1, 1), (14000, 15000, 0, 7, 6, 2, 2);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, correlationId INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (2000, 2500, 5);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER);
        INSERT INTO NVTX_EVENTS VALUES (1000, 20000, NULL, 3);
        CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100');
        CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
            correlationId INTEGER);
        """
    )
    if graphs:
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (20000, 90000, 0, 7, 9)")
    base.commit()
    base.close()
    return path


def test_an_export_of_nsight_systems_is_read(tmp_path: Path) -> None:
    path = _export(tmp_path / "report.sqlite", graphs=False)
    before = path.read_bytes()
    found = read(path)
    assert isinstance(found, Recording)
    assert [kernel.name for kernel in found.kernels] == ["nvjet_tst", "ncclDevKernel_AllReduce"]
    assert (found.kernels[0].seconds, found.kernels[0].launch_s) == pytest.approx((3e-6, 2e-6))
    assert found.kernels[1].launch_s is None
    assert [mark.name for mark in found.marks] == ["step[DECODE bs=4]"]
    assert (found.device, found.notes) == ("NVIDIA H100", ())
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["report.sqlite"]


def test_processes_of_an_export_are_told_apart(tmp_path: Path) -> None:
    """Two processes of one device 0 each with a launch 5: the busier one has its own launch and its own mark."""
    path = tmp_path / "report.sqlite"
    first, second = 7 * 2**24, 8 * 2**24
    base = sqlite3.connect(path)
    base.executescript(
        f"""
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
            correlationId INTEGER, globalPid INTEGER, shortName INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 13, 0, 7, 5, {first}, 1), (10, 18, 0, 7, 5, {second}, 1);
        CREATE TABLE StringIds (id INTEGER, value TEXT);
        INSERT INTO StringIds VALUES (1, 'nvjet_tst');
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, correlationId INTEGER, globalTid INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, 5, {first + 11}), (3, 4, 5, {second + 12});
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, globalTid INTEGER);
        INSERT INTO NVTX_EVENTS VALUES (0, 9, 'step[DECODE bs=1]', {first + 11});
        INSERT INTO NVTX_EVENTS VALUES (0, 9, 'step[DECODE bs=2]', {second + 12});
        """
    )
    base.commit()
    base.close()
    found = read(path)
    assert isinstance(found, Recording)
    assert [mark.name for mark in found.marks] == ["step[DECODE bs=2]"]
    assert [(kernel.seconds, kernel.launch_s) for kernel in found.kernels] == [pytest.approx((8e-9, 3e-9))]
    assert "2 devices" in found.notes[0]


def test_graphs_recorded_as_wholes_are_said(tmp_path: Path) -> None:
    found = read(_export(tmp_path / "report.sqlite", graphs=True))
    assert "--cuda-graph-trace=node" in found.notes[0]


def test_sums_of_nsight_systems_are_read(tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    head = "Time (%),Total Time (us),Instances,Avg (us),Name\n"
    path.write_text(f'Processing report...\n\n{head}90.0,"1,200.5",3,400,"a<b, c>"\n', encoding="utf-8")
    found = read(path)
    assert isinstance(found, Summary)
    (kernel,) = found.kernels
    assert (kernel.name, kernel.count, kernel.seconds) == ("a<b, c>", 3, pytest.approx(1.2005e-3))


def test_tables_of_rocprofv3_are_read(tmp_path: Path) -> None:
    trace, stats = tmp_path / "kernel_trace.csv", tmp_path / "kernel_stats.csv"
    trace.write_text(
        '"Kind","Agent_Id","Queue_Id","Kernel_Name","Start_Timestamp","End_Timestamp"\n'
        '"KERNEL_DISPATCH","Agent 4",1,"Cijk_A",1000,4000\n"KERNEL_DISPATCH","Agent 5",1,"other",0,10\n',
        encoding="utf-8",
    )
    stats.write_text('"Name","Calls","TotalDurationNs","AverageNs"\n"Cijk_A",2,5000,2500\n', encoding="utf-8")
    recording, summary = read(trace), read(stats)
    assert isinstance(recording, Recording)
    assert [(kernel.name, kernel.seconds) for kernel in recording.kernels] == [("Cijk_A", pytest.approx(3e-6))]
    assert "2 agents" in recording.notes[0]
    assert isinstance(summary, Summary)
    assert [(kernel.name, kernel.count) for kernel in summary.kernels] == [("Cijk_A", 2)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no profile"),
        (b"{}", "has no traceEvents"),
        (b"[1, 2", "is no profile"),
        (b'{"traceEvents": []}', "neither kernels of a device nor operators"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "args": {}}]}', "cannot be read"),
        (b"\x1f\x8b\x08\x00" + b"\xff" * 99, "cannot be unpacked"),
        (gzip.compress(b'{"traceEvents": []}' * 99, mtime=0)[:40], "is cut off"),
        (b"SQLite format 3\x00" + b"\x00" * 100, "cannot be read as an export"),
        (b"Kernel_Name,Start_Timestamp,End_Timestamp\na,x,y\n", "cannot be read"),
        (b"Total Time (weeks),Instances,Name\n1,1,a\n", "unknown unit"),
        (b"\xff\xfe\x00\x01", "is no profile"),
    ],
)
def test_broken_files_are_refused_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as raised:
        read(path)
    assert "\n" not in str(raised.value)


def _profile(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A profile of one forward pass of a small Llama on the CPU, and its config."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "vocab_size": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    config = LlamaConfig(**sizes, **heads, attn_implementation="sdpa")  # type: ignore[arg-type]
    model = LlamaForCausalLM(config).eval()
    tokens = torch.randint(0, 512, (2, 24))
    with torch.inference_mode(), torch.profiler.profile(record_shapes=True) as profiler:
        model(tokens)
    path = tmp_path / "cpu.json"
    profiler.export_chrome_trace(str(path))
    fields = config.to_dict() | {"architectures": ["LlamaForCausalLM"], "torch_dtype": "float32", "model_type": "llama"}
    return path, {name: value for name, value in fields.items() if name in {*sizes, *heads, *KEPT}}


KEPT = ("architectures", "torch_dtype", "model_type", "rms_norm_eps", "rope_theta", "hidden_act", "tie_word_embeddings")


def test_a_real_profile_is_matched_operator_by_operator(tmp_path: Path) -> None:
    """Three layers with seven products each and the head: 22 products, each with its own operator."""
    path, config = _profile(tmp_path)
    recording = read(path)
    assert isinstance(recording, Recording)
    assert "the profile has no kernels of a device" in recording.notes[0]
    shapes = [kernel.shape for kernel in recording.kernels if kernel.shape is not None and kernel.shape[0] == 48.0]
    assert len(shapes) == 22
    assert shapes[-1] == (48.0, 64.0, 512.0)
    found = diagnose(
        path, config, "h100-sxm", engine="torch-eager", stage="prefill", batch_size=2, input_len=24
    ).to_dict()
    runs = {one["name"]: sum(one["kernels"].values()) for one in found["operators"]}
    products = {
        "q_proj": 3,
        "k_proj": 3,
        "v_proj": 3,
        "o_proj": 3,
        "gate_proj": 3,
        "up_proj": 3,
        "down_proj": 3,
        "lm_head": 1,
    }
    assert {name: _products(found, name) for name in products} == products
    assert runs["attention"] >= 3
    assert found["assigned_share"] > 0.98
    assert sum(part["amount_s"] for part in found["parts"]) == pytest.approx(found["difference_s"])


def _products(found: dict[str, Any], operator: str) -> int:
    kernels = next(one["kernels"] for one in found["operators"] if one["name"] == operator)
    return sum(count for name, count in kernels.items() if name in ("aten::mm", "aten::addmm", "aten::linear"))


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = CASES["dense vLLM on Hopper"]
    recording, _ = recorded(case, runs_of(case, np.random.default_rng(0)))
    return _written(tmp_path_factory.mktemp("profile") / "trace.json", as_trace(recording))


@pytest.mark.parametrize("kind", ["table", "json", "csv", "markdown"])
def test_the_command_answers_in_every_format(kind: str, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _printed(["diagnose", str(profile), "llama-3.1-8b", "--hardware", "h100", "--format", kind], capsys)
    assert "gate_up_proj" in text
    if kind == "json":
        assert json.loads(text)["assigned_share"] == 1.0


def test_the_waterfall_is_drawn(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "parts.svg"
    _printed(["diagnose", str(profile), "llama-3.1-8b", "--hardware", "h100", "--waterfall", str(path)], capsys)
    drawn = path.read_text(encoding="utf-8")
    assert "measured" in drawn
    assert "predicted" in drawn


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("missing.json llama-3.1-8b --hardware h100", "cannot read 'missing.json'"),
        ("PROFILE no-model --hardware h100", "unknown model"),
        ("PROFILE llama-3.1-8b --hardware h100 --stage warm", "unknown stage 'warm'"),
        ("PROFILE llama-3.1-8b --hardware h100 -pp 2", "pipelines and offloading are not compared"),
        ("PROFILE llama-3.1-8b --hardware h100 --batch-size 0", "--batch-size is 0"),
        ("PROFILE llama-3.1-8b --hardware h100 --waterfall x.txt", "a name that ends in .png"),
        ("PROFILE llama-3.1-8b --hardware h100 -o PROFILE", "refusing to overwrite the input"),
    ],
)
def test_wrong_lines_are_refused(line: str, message: str, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(["diagnose", *shlex.split(line.replace("PROFILE", str(profile)))], capsys)


def test_the_result_of_a_benchmark_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """First token and 255 further ones: 0.9 s + 255 x 26 ms = 7.53 s."""
    result = {
        "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": 512, "request_rate": "inf",
        "max_concurrency": 64, "duration": 62.0, "completed": 512, "total_input_tokens": 524288,
        "total_output_tokens": 131072, "mean_ttft_ms": 900.0, "mean_tpot_ms": 26.0,
    }  # fmt: skip
    path = _written(tmp_path / "result.json", result)
    line = ["diagnose", str(path), "llama-3.1-8b", "--hardware", "h100", "--format", "json"]
    found = json.loads(_printed(line, capsys))
    assert found["measured_s"] == pytest.approx(0.9 + 255 * 0.026)
    assert sum(part["amount_s"] for part in found["parts"]) == pytest.approx(found["difference_s"])
    assert {one["metric"]: one["verdict"] for one in found["metrics"]} == {"ttft_ms": "slow", "tpot_ms": "slow"}


def test_sums_of_kernels_are_compared_by_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """320 runs of attention in 32 layers are 10 passes."""
    path = tmp_path / "sums.csv"
    path.write_text(
        'Total Time (ns),Instances,Name\n50000000,1280,"nvjet_tst"\n30000000,320,"flash_fwd_kernel"\n', encoding="utf-8"
    )
    line = f"diagnose {path} llama-3.1-8b --hardware h100 --format json"
    assert "add --stage" in refusal(shlex.split(line), capsys)
    stated = f"{line} --stage decode --batch-size 32 --input-len 2000"
    found = json.loads(_printed(shlex.split(stated), capsys))
    measured = {one["metric"]: one["measured"] for one in found["metrics"]}
    assert measured == pytest.approx({"gemm_ms": 5.0, "attention_ms": 3.0})
    assert found["note"].startswith("10 passes")
