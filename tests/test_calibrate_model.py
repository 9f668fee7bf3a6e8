"""`calibrate run --model`: the shapes of one model on one device, and what was measured beside what is predicted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="measuring needs torch")

from llmviewer.calibrate import measured_chip, model_plan, power_samples, proof, record, sizes
from llmviewer.calibrate.sources import read
from llmviewer.calibrate.timer import Limits, PreparedKernel, measure
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.core.workload import decode, prefill
from llmviewer.models.load import parse
from tests.test_calibrate_timer import FakeStopwatch

SIZE = replace(sizes.size_named("cuda", "quick"), block_prompts=((1, 512),), block_caches=((8, 2048),))
ENVIRONMENT = {
    "device": "h100-sxm", "device_name": "NVIDIA H100 80GB HBM3", "torch": "2.11.0", "driver": "580",
    "date": "2026-11-26",
}  # fmt: skip


def shapes(name: str, tp: int = 1) -> set[tuple[int, int]]:
    found = model_plan.plan_of(name, tp, SIZE).cases
    return {(case.columns["n"], case.columns["k"]) for case in found if case.table == "gemm"}


def test_products_are_those_of_one_device() -> None:
    """Llama-3.1-8B on two devices: half of the heads and channels, 1/2 of the vocabulary."""
    assert shapes("llama-3.1-8b") == {(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (128256, 4096)}
    assert shapes("llama-3.1-8b", 2) == {
        (2048, 4096),
        (512, 4096),
        (4096, 2048),
        (7168, 4096),
        (4096, 7168),
        (64128, 4096),
    }


def test_a_layer_of_a_device_has_its_share_of_the_products() -> None:
    """FLOP of the products of the configs of two devices add up to those of the whole layer."""
    whole, half = (layer(tp, "llama-3.1-8b") for tp in (1, 2))
    for step in (prefill(2.0, 64.0), decode(2.0, 64.0)):
        one, two = (
            sum(op.matmul_flops for block, op in model.graph(step) if block.is_layer) for model in (whole, half)
        )
        assert 2.0 * two == pytest.approx(one)


def layer(tp: int, name: str) -> Any:
    from llmviewer import models

    return parse(model_plan.layer_config(name, models.load(name), tp) | {"torch_dtype": "bfloat16"}, "layer", "bf16")


def test_a_mixture_of_experts_has_its_layer_measured_but_not_its_prompts_as_a_model() -> None:
    plan = model_plan.plan_of("qwen3-30b-a3b", 1, SIZE)
    stages = {(case.table, case.columns["stage"]) for case in plan.cases if case.table in ("block", "model")}
    assert stages == {("block", "prefill"), ("block", "decode"), ("model", "decode")}
    assert model_plan.COLLAPSED in plan.missing
    config = next(case.columns["config"] for case in plan.cases if case.table == "model")
    assert (config["num_hidden_layers"], config["num_local_experts"], config["intermediate_size"]) == (48, 128, 768)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deepseek-v3", "layers and the whole model: deepseek-v3 has other layers"),
        ("deepseek-v3", "experts of fp8-block: torch has no kernel"),
        ("mamba-2.8b", "recurrences of its layers"),
        ("mamba-codestral-7b", "prompts of recurrences, and convolutions: torch has no kernel"),
        ("gemma-3-4b", "sliding windows of 1024"),
    ],
)
def test_what_torch_cannot_measure_is_named(name: str, words: str) -> None:
    plain = replace(SIZE, compiled=False)
    assert any(words in line for line in model_plan.plan_of(name, 1, plain).missing)


def test_compiled_kernels_measure_windows_and_recurrences() -> None:
    """Prompts longer than the window, and one token of each batch."""
    cases = model_plan.plan_of("gemma-3-4b", 1, replace(SIZE, block_prompts=((1, 2048),))).cases
    assert {case.columns["window"] for case in cases if case.kernel == "flex"} == {1024}
    cases = model_plan.plan_of("mamba-codestral-7b", 2, SIZE).cases
    (one,) = {(case.columns["heads"], case.columns["batch"]) for case in cases if case.table == "recurrence"}
    assert one == (64, 8)


def test_devices_that_do_not_divide_a_model_and_power_of_a_processor_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["calibrate", "run", "--device", "cpu", "-o", str(tmp_path)]
    assert main([*words, "-tp", "2"]) == 2
    assert "name it with --model" in capsys.readouterr().err
    assert main([*words, "--power"]) == 2
    assert "a processor has no such counter" in capsys.readouterr().err
    assert main([*words, "--model", "llama-3.1-8b", "-tp", "3"]) == 2
    assert "3" in capsys.readouterr().err
    assert not (tmp_path / record.FILE).exists()


def write(folder: Path, rows: list[dict[str, Any]], device: str = "h100-sxm") -> Path:
    folder.mkdir(exist_ok=True)
    common = {"device": device, "source": "llmviewer", "engine": "torch 2.11.0", "samples_us": [], "stable": True}
    header = {"schema": record.SCHEMA, "environment": {**ENVIRONMENT, "device": device}}
    lines = [header, *({**common, **row} for row in rows)]
    (folder / record.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def measured_rows() -> list[dict[str, Any]]:
    cases = model_plan.plan_of("llama-3.1-8b", 1, SIZE).cases
    return [{"table": c.table, **c.columns, "latency_us": 100.0} for c in cases if c.table in ("gemm", "block")]


def test_the_proof_has_kernels_and_layers_measured_beside_predicted(tmp_path: Path) -> None:
    found = proof.document(write(tmp_path / "s", measured_rows()), "llama-3.1-8b", ("something",))
    assert [score["kernel"] for score in found["scores"]] == ["gemm torch 2.11.0 bfloat16"]
    assert found["scores"][0]["rows"] == 10
    assert {(row["stage"], row["graph"]) for row in found["layers"]} == {
        (stage, graph) for stage in ("prefill", "decode") for graph in (True, False)
    }
    assert all(row["predicted_us"] > 0.0 for row in found["layers"])
    assert found["missing"] == ["something"]


def test_an_unknown_device_is_told_how_to_get_predictions(tmp_path: Path) -> None:
    found = proof.document(write(tmp_path / "s", measured_rows(), "my-card"), "llama-3.1-8b", ())
    assert (found["scores"], found["missing"]) == ([], [proof.UNKNOWN_CHIP])


def test_a_run_of_a_model_ends_with_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = replace(sizes.size_named("cpu", "quick"), samples=3, sample_s=1e-5, warmup_s=0.0, max_flops=1e7)
    tiny = replace(tiny, samplers=("greedy",), block_prompts=(), block_caches=((1, 8),), whole_models=())
    monkeypatch.setattr("llmviewer.calibrate.environment.cpu_cache_bytes", lambda: 2**16)
    monkeypatch.setattr("llmviewer.calibrate.environment.physical_cores", lambda: 1)
    monkeypatch.setitem(sizes.SIZES, ("cpu", "quick"), tiny)
    folder = tmp_path / "s"
    assert main(["calibrate", "run", "--quick", "--device", "cpu", "--model", "qwen3-0.6b", "-o", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert proof.UNKNOWN_CHIP.partition(";")[0] in printed
    _, tables = record.read(folder)
    assert set(tables["elementwise"]["width"]) <= {1024, 3072}


def test_power_is_the_mean_over_the_time_asked_for() -> None:
    watch = FakeStopwatch(1e-3)
    plain, counted = (measure(PreparedKernel(run=lambda i: None), watch, Limits(power_s=s)) for s in (0.0, 0.5))
    assert (plain.reading.power_w, counted.reading.power_w, counted.reading.power_s) == (None, 300.0, 0.5)


def power_rows(idle: float, memory: float, count: int = 20) -> list[dict[str, Any]]:
    """Copies of an H100 (700 W, 3,350 GB/s) whose power follows from known shares."""
    rows = []
    for at in range(count):
        used = 0.1 + 0.8 * at / count
        rows.append({
            "table": "copy", "op": "copy", "dtype": "float32", "bytes": 2**20 + at, "moved_bytes": 3.35e6 * used,
            "latency_us": 1.0, "power_w": 700.0 * (idle + memory * used), "power_s": 0.5,
        })  # fmt: skip
    return rows


def test_known_power_shares_are_found_again(tmp_path: Path) -> None:
    _, rows = power_samples.rows_of(write(tmp_path / "s", power_rows(0.2, 0.6)))
    own = power_samples.shares(rows)
    assert (own.idle, own.memory) == pytest.approx((0.2, 0.6), abs=0.01)
    assert abs(power_samples.errors(own, rows)).max() < 0.01


def test_power_read_after_a_sample_is_not_fitted(tmp_path: Path) -> None:
    rows = [{**row, "power_s": 0.0} for row in power_rows(0.2, 0.6)]
    with pytest.raises(UserError, match="0 rows of `calibrate run --power`"):
        power_samples.rows_of(write(tmp_path / "s", rows))


def test_rates_of_the_host_are_in_the_provenance(tmp_path: Path) -> None:
    """64 MiB in 1.22 ms are 55 GB/s."""
    rows = [
        {"table": "host", "op": op, "pinned": pinned, "bytes": 2**26, "moved_bytes": 2**26, "latency_us": us}
        for op, pinned, us in (("h2d", True, 1220.0), ("h2d", True, 2000.0), ("h2d", False, 8000.0))
    ]
    found = measured_chip.measured_rates([read(write(tmp_path / "s", rows))])
    assert found == {"host_gb_per_s": {"h2d_pinned": 55.01, "h2d_pageable": 8.39}}
