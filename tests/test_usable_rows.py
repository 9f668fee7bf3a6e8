"""A missing or absurd cell of a measured table drops its row with a counted reason; the other rows are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas")
pytest.importorskip("scipy", reason="fitting needs scipy")
import numpy as np
import pandas as pd

from llmviewer.calibrate import e2e, record
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.calibrate.usable import counted, usable_rows
from llmviewer.cli import main

#: One good row of every kernel table; `size` names the column that tells rows apart.
KERNELS: dict[str, dict[str, Any]] = {
    "gemm": {"engine": "torch 2.9", "dtype": "bfloat16", "m": 64, "n": 4096, "k": 4096, "experts": 1, "active": 1},
    "attention_prefill": {
        "engine": "sglang 0.5", "dtype": "bfloat16", "kernel": "fa3", "batch": 1, "seq": 512, "heads": 32,
        "kv_heads": 8, "head_dim": 128, "window": 0, "prefix": 0,
    },
    "attention_decode": {
        "engine": "sglang 0.5", "dtype": "bfloat16", "kernel": "fa3", "batch": 8, "context": 512, "heads": 32,
        "kv_heads": 8, "head_dim": 128, "window": 0,
    },
    "allreduce": {"engine": "nccl 2.29", "op": "all_reduce", "gpus": 8, "bytes": 2**20, "impl": "NCCL"},
    "elementwise": {"engine": "vllm 0.9", "op": "mlp_act", "dtype": "bfloat16", "tokens": 512, "width": 4096},
}  # fmt: skip
REQUEST = {
    "device": "h100_sxm", "model": "llama-2-7b", "engine": "vllm 0.9", "input_len": 128, "output_len": 64,
    "metric": "tpot_ms", "value": 10.0, "batch": 1,
}  # fmt: skip


def scores(frame: Any, capsys: pytest.CaptureFixture[str], name: str = "table.csv") -> dict[str, Any]:
    """The JSON of `calibrate validate` on a table."""
    path = Path(name)
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    assert main(["calibrate", "validate", name, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def spoiled(table: str, **cells: Any) -> Any:
    """Two good rows and one with these cells between them."""
    good = {"device": "h100_sxm", **KERNELS[table], "latency_us": 30.0}
    return pd.DataFrame([good, {**good, **cells}, {**good, "latency_us": 31.0}])


@pytest.mark.parametrize(
    ("table", "cells", "reason"),
    [
        ("gemm", {"m": np.nan}, "m is missing or no number"),
        ("gemm", {"k": "x"}, "k is missing or no number"),
        ("gemm", {"n": 1e300}, "n is out of range; allowed: positive numbers up to 1e+09"),
        ("gemm", {"latency_us": -1.0}, "latency_us is out of range; allowed: positive numbers up to 1e+15"),
        ("gemm", {"dtype": ""}, "dtype is missing"),
        ("gemm", {"device": ""}, "device is missing"),
        ("gemm", {"experts": 8, "active": np.nan}, "experts without `active`, the number of them that run"),
        ("gemm", {"experts": 8, "active": 9}, "experts without `active`, the number of them that run"),
        ("gemm", {"experts": np.inf, "active": 9}, "experts is out of range; allowed: positive numbers up to 1e+09"),
        ("attention_prefill", {"kv_heads": 3}, "heads is no multiple of kv_heads"),
        ("attention_prefill", {"window": -1}, "window is out of range; allowed: numbers from 0 up to 1e+09"),
        ("attention_decode", {"context": np.nan}, "context is missing or no number"),
        ("allreduce", {"op": ""}, "op is missing"),
        ("allreduce", {"gpus": 1}, "gpus is out of range; allowed: 2 or more"),
        ("elementwise", {"op": ""}, "op is missing"),
        ("elementwise", {"tokens": "many"}, "tokens is missing or no number"),
    ],
)
def test_a_bad_cell_of_a_kernel_table_drops_its_row(
    table: str, cells: dict[str, Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = scores(spoiled(table, **cells), capsys)
    assert found["not_predicted"] == {reason: 1}
    assert found["total"]["rows"] == 2


@pytest.mark.parametrize("table", KERNELS)
def test_an_empty_engine_is_torch_and_a_lone_column_less_is_no_crash(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = scores(spoiled(table, engine=""), capsys)
    assert found["total"]["rows"] + sum(found["not_predicted"].values()) == 3
    for name in {"engine", "dtype", "experts", "active", "kernel", "impl"} & {*KERNELS[table]}:
        found = scores(spoiled(table).drop(columns=name), capsys)
        assert (found["total"] or {"rows": 0})["rows"] + sum(found["not_predicted"].values()) == 3


def test_experts_without_the_column_active_are_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = scores(spoiled("gemm", experts=8).drop(columns="active"), capsys)
    assert found["not_predicted"] == {"experts without `active`, the number of them that run": 1}


def test_numbers_are_numbers_again_beside_a_cell_of_text() -> None:
    """A CSV with one word in a column of numbers is read as text; its good rows have the same sizes as alone."""
    text = spoiled("gemm", m="x").astype(str)
    usable, reasons = usable_rows(text, "gemm")
    alone = spoiled("gemm").iloc[[0, 2]]
    assert counted(reasons) == {"m is missing or no number": 1}
    for name in ("m", "n", "k"):
        assert usable[name].astype(str).tolist() == alone[name].astype(str).tolist()  # folds hash this text


def test_a_fit_counts_the_rows_that_it_cannot_use(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"device": "h100_sxm", **KERNELS["elementwise"], "tokens": 2**n, "latency_us": 3 + 2**n / 100}
        for n in range(12)
    ]
    rows[3]["tokens"], rows[5]["latency_us"] = np.nan, 0.0
    pd.DataFrame(rows).to_csv("table.csv", index=False)
    assert main(["calibrate", "fit", "table.csv", "-o", "profile.yaml", "--format", "json"]) == 0
    left_out = json.loads(capsys.readouterr().out)["left_out"]
    assert left_out == {
        "tokens is missing or no number": 1,
        "latency_us is out of range; allowed: positive numbers up to 1e+15": 1,
    }


def test_a_sample_of_a_layer_without_its_model_and_stage_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    shared = {"device": "h100_sxm", "engine": "torch 2.9", "latency_us": 30.0}
    good = {"table": "gemm", **shared, **KERNELS["gemm"]}
    layer = {"table": "block", **shared, "dtype": "bfloat16", "graph": False, "batch": 1, "seq": 8, "config": {}}
    header = {"schema": record.SCHEMA, "environment": {"device": "h100_sxm"}}
    lines = (header, good, {**good, "m": None}, layer, {**layer, "model": "x", "stage": "late"})
    Path(record.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["calibrate", "validate", record.FILE, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_predicted"] == {
        "m is missing or no number": 1,
        "model is missing": 1,
        "stage is neither prefill nor decode": 1,
    }


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"input_len": np.nan}, "input_len is neither 0 nor a number from 1 to 1,000,000,000"),
        ({"output_len": "many"}, "output_len is not a number"),
        ({"output_len": 1e12}, "output_len is neither 0 nor a number from 1 to 1,000,000,000"),
        ({"output_len": 10**8}, "the request takes"),
        ({"value": np.nan}, "value is not a number above 0"),
        ({"value": -1.0}, "value is not a number above 0"),
        ({"batch": np.inf}, "batch is neither 0 nor a number from 1 to 1,000,000,000"),
        ({"output_len": 0.5}, "output_len is neither 0 nor a number from 1 to 1,000,000,000"),
        ({"tp": 1.5}, "tp is neither 0 nor a whole number from 1 to 1,000,000,000"),
        ({"engine": ""}, "unknown engine"),
        ({"model": ""}, "unknown model"),
        ({"metric": ""}, "unknown metric"),
    ],
)
def test_a_bad_cell_of_a_request_drops_its_row(
    cells: dict[str, Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame([REQUEST, {**REQUEST, **cells}, {**REQUEST, "output_len": 100}])
    found = scores(frame, capsys)
    ((stated, rows),) = found["not_predicted"].items()
    assert (rows, found["total"]["rows"]) == (1, 2)
    assert reason in stated


def test_mean_lengths_are_rounded_to_tokens() -> None:
    frame = pd.DataFrame([{**REQUEST, "output_len": 99.6, "input_len": 128.4}, {**REQUEST, "output_len": 100}])
    mean, whole = e2e.predict(frame, PredictionOptions())["predicted"]
    assert mean == whole


@pytest.mark.parametrize("model", ["llama-2-7b", "mamba-130m"])
def test_requests_of_more_than_32768_tokens_are_predicted(model: str) -> None:
    """Their passes are priced in pieces: 40,000 decode steps, of which the first piece holds a few."""
    row = {**REQUEST, "model": model, "metric": "latency_ms", "value": 1e6}
    frame = pd.DataFrame([{**row, "output_len": 30_000}, {**row, "output_len": 32_768}, {**row, "output_len": 40_000}])
    found = e2e.predict(frame, PredictionOptions())
    assert found["reason"].tolist() == ["", "", ""]
    for name in ("predicted", "ideal"):  # nearly the time of a step each
        per_token = found[name] / found["output_len"]
        assert per_token.is_monotonic_increasing or model == "mamba-130m"
        assert per_token.max() < 1.5 * per_token.min()
    assert (found["ideal"] < found["predicted"]).all()


def test_predictions_of_mixed_cells_are_written_as_csv_and_parquet(capsys: pytest.CaptureFixture[str]) -> None:
    """A column with a number and a word has no type of Parquet; it is written as text."""
    good = {"table": "gemm", "device": "h100_sxm", **KERNELS["gemm"], "latency_us": 30.0}
    header = {"schema": record.SCHEMA, "environment": {"device": "h100_sxm"}}
    lines = (header, good, {**good, "m": "x"})
    Path(record.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, read in (("rows.csv", pd.read_csv), ("rows.parquet", pd.read_parquet)):
        assert main(["calibrate", "validate", record.FILE, "-o", name]) == 0
        assert read(name)["m"].tolist() == ["64", "x"]


def test_a_measured_point_without_a_time_is_left_out_of_the_roofline(capsys: pytest.CaptureFixture[str]) -> None:
    rows = "stage,name,time_s\nprefill,q_proj,0.001\nprefill,k_proj,soon\nprefill,v_proj,-1\nprefill,o_proj,\n"
    Path("measured.csv").write_text(rows)
    words = "plot roofline llama-2-7b --hardware a6000 --measured measured.csv -o plot.png"
    assert main(words.split()) == 0
    warning = "warning: 3 of 4 measured rows are left out: time_s is no number of seconds above 0\n"
    assert capsys.readouterr().err == warning + "wrote plot.png\n"
    assert Path("plot.png").stat().st_size > 0
