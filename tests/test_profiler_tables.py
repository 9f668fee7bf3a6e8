"""Tables of torch.profiler against predictions: time of a forward pass by kind of kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmviewer import api
from llmviewer.calibrate.readers import torch_profiler
from llmviewer.cli import main

pytest.importorskip("pandas")
COLUMNS = ("Name", "Self CPU %", "Self CPU", "CPU total", "Self CUDA", "Self CUDA %", "# of Calls")
WORDS = (
    "--model",
    "llama-3.1-8b",
    "--hardware",
    "h100",
    "--engine",
    "vllm",
    "--batch-size",
    "8",
    "--input-len",
    "1024",
)
#: Operators with the time of the host, and the kernels they launch: the same time of the device stands twice.
GPU = [
    ("ProfilerStep*", "0.000us", "0.000us", "30.000ms"),
    ("aten::mm", "900.000us", "1.200ms", "12.000ms"),
    ("vllm::unified_attention", "80.000us", "90.000us", "2.000ms"),
    ("nvjet_tst_64x64_64x16_1x4_h_bz_TNT", "0.000us", "0.000us", "9.000ms"),
    ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16...", "0.000us", "0.000us", "3000.000us"),
    ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kerne...", "0.000us", "0.000us", "2.000ms"),
    ("void vllm::fused_add_rms_norm_kernel<c10::BFloat16, ...", "0.000us", "0.000us", "500.000us"),
    ("void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::...", "0.000us", "0.000us", "400.000us"),
    ("some_new_kernel", "0.000us", "0.000us", "100.000us"),
    ("cudaLaunchKernel", "5.000ms", "5.000ms", "0.000us"),
]


def table(rows: list[tuple[str, ...]], columns: tuple[str, ...] = COLUMNS) -> str:
    """The text of a table as torch prints it: columns between rules of dashes, aligned at the right."""
    widths = [max(len(name), 55 if name == "Name" else 12) for name in columns]
    rule = "  ".join("-" * width for width in widths) + "  "

    def line(cells: tuple[str, ...]) -> str:
        return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + "  "

    body = [line((name, "1.00%", own, total, device, "1.00%", "4")) for name, own, total, device in rows]
    return "\n".join([rule, line(columns), rule, *body, rule, "Self CPU time total: 6.000ms", ""])


def write(folder: Path, text: str) -> Path:
    path = folder / "profile"
    path.write_text(text, encoding="utf-8")
    return path


def figures(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], dict[str, int]]:
    assert main(["calibrate", "validate", str(path), *words, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    return {figure["metric"]: figure for figure in document["figures"]}, document["not_predicted"]


def test_kernels_are_summed_by_kind_and_divided_by_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four passes: (9 + 3) / 4 = 3 ms of GEMM, 2 / 4 of attention, (0.5 + 0.4) / 4 of the rest; operators and spans,
    whose kernels are listed, do not count; an unknown kernel has 0.1 of 15 ms."""
    found, left_out = figures(write(tmp_path, table(GPU)), capsys, *WORDS, "--stage", "decode", "--passes", "4")
    assert {name: figure["measured"] for name, figure in found.items()} == pytest.approx(
        {"gemm_ms": 3.0, "attention_ms": 0.5, "others_ms": 0.225}
    )
    assert left_out == {"kernels of unknown kind, 1% of the profiled time": 1}


def test_the_prediction_is_that_of_a_decode_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = figures(write(tmp_path, table(GPU)), capsys, *WORDS, "--stage", "decode")
    result = api.analyze(
        "llama-3.1-8b", "h100", batch_size=8, input_len=1023, output_len=2, efficiency="calibrated", engine="vllm"
    )
    rows = result.operators
    decode = rows[rows["stage"] == "decode"]
    for group, kind in (("gemm_ms", "gemm"), ("attention_ms", "attention")):
        own = decode[decode["kind"] == kind]
        assert found[group]["predicted"] == pytest.approx(1e3 * float((own["time_s"] * own["layers"]).sum()), rel=1e-3)
        low, high = found[group]["interval_80"]
        assert low < found[group]["predicted"] < high
        assert found[group]["ideal"] <= found[group]["predicted"]


def test_a_prefill_takes_longer_than_a_decode_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, table(GPU))
    prefill, decode = (figures(path, capsys, *WORDS, "--stage", stage)[0]["gemm_ms"] for stage in ("prefill", "decode"))
    assert prefill["predicted"] > 10 * decode["predicted"]


def test_without_kernels_the_operators_count(tmp_path: Path) -> None:
    """A table of operators alone, and one of a processor, which has no column of a device."""
    gpu = torch_profiler._seconds(write(tmp_path, table(GPU[1:3])))
    assert gpu == pytest.approx({"gemm": 12e-3, "attention": 2e-3})
    names = tuple(name.replace("Self CUDA", "CPU time avg") for name in COLUMNS)
    cpu = torch_profiler._seconds(write(tmp_path, table(GPU[1:3], names)))
    assert cpu == pytest.approx({"gemm": 900e-6, "attention": 80e-6})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "does not state the stage: add --stage prefill or --stage decode"),
        (("--stage", "train"), "unknown stage 'train'"),
        (("--stage", "decode"), "does not state the chip, the model, the engine, the number of concurrent requests"),
    ],
)
def test_what_a_profile_does_not_state_is_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "validate", str(write(tmp_path, table(GPU))), *words]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert message in printed


def test_a_real_table_of_torch_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.nn.functional.silu(torch.randn(8, 64) @ torch.randn(64, 64))
    path = write(tmp_path, profile.key_averages().table(row_limit=-1))
    assert torch_profiler.is_table(path)
    found = torch_profiler._seconds(path)
    assert found["gemm"] > 0.0
    assert found["others"] > 0.0
