"""`calibrate run` and its file: rows written one by one, resuming after a kill, one-line errors for wrong files."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="measuring needs torch")
import torch

from llmviewer.calibrate import plan, record, sizes
from llmviewer.calibrate.kernels import KERNELS
from llmviewer.calibrate.run import Progress, run
from llmviewer.calibrate.tables import RowGroup, row_groups
from llmviewer.calibrate.timer import PreparedKernel
from llmviewer.calibrate.usable import usable_rows
from llmviewer.cli import main
from llmviewer.core.errors import UserError

#: One or two fast rows of every table.
TINY = sizes.RunSize(
    samples=3, sample_s=1e-5, warmup_s=0.0, graphs=False, compiled=False, max_flops=1e8,
    models=("pythia-1.4b",), dtypes=("float32",), tokens=(1,), attention_models=("qwen2.5-0.5b",),
    attention_dtypes=("float32",), backends=("sdpa_flash",), latent_models=(),
    prompts=((1, 16),), caches=((2, 32),), widths=(64,), copy_bytes=(4096,),
    expert_models=("olmoe-1b-7b",), expert_tokens=(2,), expert_splits=((1, 16),),
    encoder_models=("gemma-3-4b",), images=((1, 16),),
    blocks=(("qwen2.5-0.5b", 1),), whole_models=(), block_dtypes=("float32",), block_caches=((1, 8),),
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a small cache size, so that rotating buffers stay small and tests fast."""
    monkeypatch.setattr("llmviewer.calibrate.environment.cpu_cache_bytes", lambda: 2**16)
    monkeypatch.setattr("llmviewer.calibrate.environment.physical_cores", lambda: 1)
    monkeypatch.setitem(sizes.SIZES, ("cpu", "quick"), TINY)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / record.FILE).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmviewer.calibrate.environment.cpu_cache_bytes", lambda: 2**16)
        patch.setattr("llmviewer.calibrate.environment.physical_cores", lambda: 1)
        run(folder, "cpu", TINY)
    return folder


@pytest.fixture
def file(measured: Path, tmp_path: Path) -> Path:
    """A copy of the samples file that a test may change."""
    copy = tmp_path / record.FILE
    copy.write_bytes((measured / record.FILE).read_bytes())
    return copy


def test_a_run_writes_the_environment_and_rows_of_every_table(measured: Path) -> None:
    header, *rows = lines(measured)
    assert header["schema"] == "llmviewer.samples/1"
    assert {"device", "device_name", "torch", "threads", "cache_bytes", "cpu", "date"} <= set(header["environment"])
    attention = {"attention_prefill", "attention_decode", "attention_encoder"}
    assert {row["table"] for row in rows} == attention | {"gemm", "moe", "elementwise", "copy", "launch", "block"}
    for row in rows:
        assert (row["device"], row["source"], row["engine"]) == ("cpu", "llmviewer", f"torch {torch.__version__}")
        assert "skipped" in row or len(row["samples_us"]) >= 3
        assert "skipped" in row or row["latency_us"] > 0.0


def test_read_gives_the_environment_and_a_table_of_each_kind(measured: Path) -> None:
    environment, tables = record.read(measured)
    assert environment["device"] == "cpu"
    assert {"m", "n", "k", "dtype", "latency_us", "samples_us", "spread", "stable"} <= set(tables["gemm"].columns)
    assert tables["block"]["config"][0]["model_type"] == "llama"


@pytest.mark.parametrize("table", ["attention_encoder", "moe"])
def test_measured_rows_are_read_as_the_rows_of_others(measured: Path, table: str) -> None:
    """A fit takes them: of one engine, with every row of the table, unless torch lacks the kernel."""
    skipped = [row["skipped"] for row in lines(measured)[1:] if row["table"] == table and "skipped" in row]
    if not hasattr(torch, "_grouped_mm") and table == "moe":
        assert set(skipped) == {f"torch {torch.__version__} has no grouped GEMM"}
        return
    frame = record.read(measured)[1][table]
    clean, reasons = usable_rows(frame, table)
    groups = [group for group in row_groups(clean, "h100-sxm") if isinstance(group, RowGroup)]
    assert (skipped, list(reasons)) == ([], [])
    assert sum(len(group.measured_s) for group in groups) == len(frame) > 0
    assert {(group.table, group.engine) for group in groups} == {(table, "torch")}


@pytest.mark.parametrize(("source", "engine"), [("llmviewer", "torch-eager"), ("aiconfigurator", "torch")])
def test_all_reduces_of_a_run_are_those_of_a_host(source: str, engine: str) -> None:
    """`calibrate run` launches NCCL call by call, so its times serve no engine with CUDA graphs."""
    import pandas as pd

    case = next(case for case in plan.cases(sizes.size_named("cuda", "quick"), gpus=2) if case.table == "allreduce")
    columns = {"device": "h200", "source": source, "engine": "torch 2.11.0", "latency_us": 20.0, **case.columns}
    clean, _ = usable_rows(pd.DataFrame([columns]), "allreduce")
    (group,) = row_groups(clean)
    assert isinstance(group, RowGroup)
    assert group.engine == engine


def test_a_killed_run_resumes(tmp_path: Path) -> None:
    def killed(progress: Progress) -> None:
        if progress.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "cpu", TINY, killed)
    before = (tmp_path / record.FILE).read_bytes()
    assert len(before.splitlines()) == 1 + 4
    summary = run(tmp_path, "cpu", TINY)
    assert summary.kept == 4
    assert (tmp_path / record.FILE).read_bytes().startswith(before)
    keys = [record.row_key(row) for row in lines(tmp_path)[1:]]
    assert len(keys) == len(set(keys)) == 4 + sum(summary.measured.values()) + sum(summary.skipped.values())
    assert run(tmp_path, "cpu", TINY).kept == len(keys)


def test_an_interrupted_run_says_what_it_kept_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first GEMM is interrupted; rows of the tables before it are on disk, and the same command adds the rest."""
    words = ["calibrate", "run", "--quick", "--device", "cpu", "-o", str(tmp_path)]

    def interrupted(columns: object, buffers: object) -> PreparedKernel:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(KERNELS, "linear", interrupted)
        assert main(words) == 130
    kept = len(lines(tmp_path)) - 1
    assert kept > 0
    told = capsys.readouterr().err.splitlines()
    estimate = r"\d+ rows to measure \(.*gemm \d+.*\): 0:\d\d min or more, without limit"
    assert any(re.fullmatch(estimate, text.strip()) for text in told)
    (line,) = [text for text in told if text.startswith("interrupted")]
    before, missing, after = line.partition(" (missing: ")[0], *line.partition(" (missing: ")[2].split("); ")
    assert before == f"interrupted: {kept} rows are kept in {tmp_path}/samples.jsonl"
    assert missing.startswith("gemm ") and "copy" not in missing, "the tables before it are whole"
    assert after == (
        f"the same command continues after them, `llmviewer calibrate fit {tmp_path} -o profile.yaml` uses them"
    )
    assert main(words) == 0
    assert f"{kept} rows were already measured" in capsys.readouterr().out
    assert len(lines(tmp_path)) - 1 > kept


def test_an_interrupt_before_the_first_row_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(kind: str) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr("llmviewer.calibrate.environment.describe", interrupted)
    assert main(["calibrate", "run", "--quick", "--device", "cpu", "-o", str(tmp_path)]) == 130
    assert "nothing was measured yet" in capsys.readouterr().err


def test_a_truncated_last_line_is_repaired_by_the_next_run(file: Path) -> None:
    whole = lines(file.parent)
    os.truncate(file, file.stat().st_size - 9)
    summary = run(file.parent, "cpu", TINY)
    assert summary.repaired
    assert [record.row_key(row) for row in lines(file.parent)[1:]] == [record.row_key(row) for row in whole[1:]]


def test_an_unfinished_first_line_is_rewritten(tmp_path: Path) -> None:
    (tmp_path / record.FILE).write_text('{"schema": "llmviewer.samp', encoding="utf-8")
    run(tmp_path, "cpu", TINY)
    assert lines(tmp_path)[0]["schema"] == record.SCHEMA


def test_a_truncated_last_line_is_skipped_and_reported(file: Path) -> None:
    message: list[str] = []
    rows = len(lines(file.parent))
    os.truncate(file, file.stat().st_size - 9)
    _, tables = record.read(file, message.append)
    assert sum(map(len, tables.values())) <= rows - 2
    assert "truncated" in message[0]


def rewritten(file: Path, change: Callable[[dict[str, Any]], None], line: int = 1) -> None:
    rows = lines(file.parent)
    change(rows[line])
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize("value", [math.nan, -1.0, 0.0, math.inf, "fast", None, True])
def test_an_invalid_latency_names_its_line(file: Path, value: object) -> None:
    rewritten(file, lambda row: row.update(latency_us=value))
    with pytest.raises(UserError, match="line 2"):
        record.read(file)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "first line is missing"),
        ('{"schema": "llmviewer.samples/2", "environment": {}}\n', "expected 'llmviewer.samples/1'"),
        ('{"schema": "llmviewer.samples/1"}\n', "environment is null"),
        ("m,n,k\n1,2,3\n", "cannot be read as JSON"),
        ("[1]\n", "expected a mapping"),
        ('{"rows": []}\n', "names no schema"),
        ('{"schema": "llmviewer.samples/1", "environment": {}}\n{"table": "gem"}\n', "did you mean 'gemm'"),
        ('{"schema": "llmviewer.samples/1", "environment": {}}\n{"table": "gemm"}\n', "latency_us is null"),
    ],
)
def test_a_file_of_another_kind_is_a_one_line_error(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / record.FILE).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=why):
        record.read(tmp_path)


def test_another_devices_file_is_not_modified(file: Path) -> None:
    rewritten(file, lambda row: row["environment"].update(device="h200", device_name="NVIDIA H200"), line=0)
    before = file.read_bytes()
    with pytest.raises(UserError, match="device: h200 in the file, cpu now"):
        run(file.parent, "cpu", TINY)
    assert file.read_bytes() == before


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lock is released when the other run ends, however it ends."""
    other = record.Recorder(record.prepare_folder(tmp_path))
    assert "another `calibrate run` writes to" in refused(capsys, "--quick", "--device", "cpu", "-o", str(tmp_path))
    assert (tmp_path / record.FILE).read_bytes() == b""
    other.close()
    rows = len(lines(tmp_path)) if run(tmp_path, "cpu", TINY).measured else 0
    run(tmp_path, "cpu", TINY)
    assert len(lines(tmp_path)) == rows > 1


def test_a_kernel_that_raises_is_skipped_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(columns: object, buffers: object) -> PreparedKernel:
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED\nwhen calling")

    monkeypatch.setitem(KERNELS, "linear", broken)
    summary = run(tmp_path, "cpu", TINY)
    gemms = [row for row in lines(tmp_path)[1:] if row["table"] == "gemm"]
    assert gemms
    assert {row["skipped"] for row in gemms} == {"RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED when calling"}
    assert sum(summary.skipped.values()) == len(gemms)
    assert "gemm" not in record.read(tmp_path)[1]


def test_a_shape_that_does_not_fit_the_memory_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmviewer.calibrate.buffers.free_bytes", lambda: 1e6)
    summary = run(tmp_path, "cpu", TINY)
    assert any(reason.startswith("out of memory: needs") for reason in summary.skipped)


def test_rows_beyond_the_time_limit_are_measured_by_the_next_run(tmp_path: Path) -> None:
    from dataclasses import replace

    first = run(tmp_path, "cpu", replace(TINY, budget_s=0.0))
    assert sum(first.left_out.values()) > 0
    assert len(lines(tmp_path)) == 1
    assert not run(tmp_path, "cpu", TINY).left_out


def test_progress_begins_with_an_estimate_and_ends_when_everything_is_done(tmp_path: Path) -> None:
    """The estimate is at least the samples of every row, and at most the budget; each row is missing until measured."""
    seen: list[Progress] = []
    run(tmp_path, "cpu", TINY, seen.append)
    assert [progress.done for progress in seen] == list(range(len(seen)))
    assert all(sum(one.missing.values()) == one.total - one.done for one in seen)
    assert seen[0].least_s == pytest.approx(seen[0].total * (TINY.warmup_s + TINY.samples * TINY.sample_s))
    assert seen[0].left_s == TINY.budget_s
    assert seen[-1].total == len(seen) - 1
    assert seen[-1].left_s == 0.0


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one-line error of a command that exits 2."""
    assert main(["calibrate", "run", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_the_command_measures_and_reports_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "run", "--quick", "--device", "cpu", "-o", str(tmp_path / "new" / "folder")]) == 0
    out = capsys.readouterr().out
    assert "gemm: " in out
    assert f"written: {tmp_path / 'new' / 'folder' / 'samples.jsonl'}" in out
    assert record.read(tmp_path / "new" / "folder")[1]


def test_without_torch_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install 'llmviewer[calibrate]'" in refused(capsys, "-o", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_without_cuda_the_device_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no CUDA" in refused(capsys, "--device", "cuda", "-o", str(tmp_path / "x"))


def test_wrong_arguments_are_rejected_before_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("mine", encoding="utf-8")
    assert "cannot write" in refused(capsys, "--device", "cpu", "-o", str(file))
    assert "unknown device 'tpu'" in refused(capsys, "--device", "tpu", "-o", str(tmp_path))
    assert "exclude each other" in refused(capsys, "--quick", "--full", "-o", str(tmp_path))
    assert "-o" in refused(capsys)
    assert file.read_text(encoding="utf-8") == "mine"
