"""Measured files are regular files of bounded size; anything else is a one-line error, never a hang or an abort."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

import pandas as pd

from llmviewer.calibrate import record, table_file
from llmviewer.core import files
from llmviewer.core.errors import UserError

from .answers import refusal

GEMM = "device,dtype,m,n,k,latency_us\nh100_sxm,bfloat16,64,4096,4096,12\n"
#: Commands that read a measured file; FILE stands for it.
READERS = (
    "calibrate fit FILE -o profile.yaml",
    "calibrate validate FILE",
    "plot roofline llama-2-7b --hardware a6000 --measured FILE",
    "plot parity FILE",
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Changes to an empty folder; a test that hangs fails after a minute."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("reading hangs")

    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def words(line: str, file: str) -> list[str]:
    return [file if word == "FILE" else word for word in line.split()]


@pytest.mark.parametrize("line", READERS)
def test_a_pipe_a_device_and_a_folder_are_refused_at_once(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe.csv")
    Path("zero.csv").symlink_to("/dev/zero")
    for file in ("pipe.csv", "zero.csv"):
        assert "is a device or a pipe; expected a file" in refusal(words(line, file), capsys)


def test_a_pipe_among_samples_stops_neither_reading_nor_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("samples").mkdir()
    os.mkfifo(Path("samples") / record.FILE)
    assert "is a device or a pipe" in refusal(["calibrate", "validate", "samples"], capsys)
    with pytest.raises(UserError, match="is not a file"):
        record.prepare_folder("samples")


def test_a_pipe_beside_a_profile_is_not_opened() -> None:
    from llmviewer.calibrate.measured_chip import GENERATED_HEADER, may_replace

    os.mkfifo("cpu.yaml")
    assert not may_replace(Path("cpu.yaml"))
    Path("own.yaml").write_text("name: mine\n")
    Path("fitted.yaml").write_text(GENERATED_HEADER)
    assert [may_replace(Path(name)) for name in ("own.yaml", "fitted.yaml", "none.yaml")] == [False, True, True]


@pytest.mark.parametrize("line", READERS)
def test_a_file_of_ten_gigabytes_is_refused_by_its_size(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("large.csv").open("wb") as stream:
        stream.write(GEMM.encode())
        stream.truncate(10 * 2**30)  # sparse: takes a block on disk
    assert "'large.csv' is larger than 256 MiB" in refusal(words(line, "large.csv"), capsys)


def test_samples_have_the_same_limit(capsys: pytest.CaptureFixture[str]) -> None:
    with Path(record.FILE).open("wb") as stream:
        stream.truncate(record.MAX_FILE_BYTES + 1)
    message = refusal(["calibrate", "validate", record.FILE], capsys)
    assert f"'{record.FILE}' is larger than 256 MiB; not samples of `calibrate run`" in message


def test_rows_of_parquet_are_counted_before_they_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    """5 M rows of one value take a few kilobytes as Parquet, and 40 MB per column once read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ones = pa.array([1.0]).take(pa.array([0] * 1000))
    column = pa.chunked_array([ones] * 5000)
    pq.write_table(pa.table({"m": column, "latency_us": column}), "long.parquet")
    assert Path("long.parquet").stat().st_size < 2**20
    assert "has more than 250,000 rows" in refusal(["calibrate", "validate", "long.parquet"], capsys)


def test_a_csv_with_too_many_rows_or_columns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "MAX_ROWS", 3)
    Path("rows.csv").write_text("a,b\n" + "1,2\n" * 4)
    with pytest.raises(UserError, match=r"'rows.csv' has more than 3 rows"):
        table_file.read(Path("rows.csv"))
    Path("columns.csv").write_text(",".join(f"c{number}" for number in range(1001)) + "\n")
    with pytest.raises(UserError, match="has 1,001 columns; allowed: at most 1,000"):
        table_file.read(Path("columns.csv"))
    Path("line.csv").write_text("a" * (table_file.MAX_HEADER_BYTES + 1))
    with pytest.raises(UserError, match="has a first line of more than 1,024 KiB"):
        table_file.read(Path("line.csv"))


def test_cells_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 cells in 4 columns are 3 rows."""
    monkeypatch.setattr(table_file, "MAX_CELLS", 12)
    Path("a.csv").write_text("a,b,c,d\n" + "1,2,3,4\n" * 3)
    assert len(table_file.read(Path("a.csv"))) == 3
    Path("a.csv").write_text("a,b,c,d\n" + "1,2,3,4\n" * 4)
    with pytest.raises(UserError, match="has more than 3 rows"):
        table_file.read(Path("a.csv"))


def test_an_index_of_parquet_is_no_label_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """pandas stores an index of equal labels, by which rows could not be told apart."""
    from llmviewer.cli import main

    row = {"device": "h100_sxm", "dtype": "bfloat16", "m": 64, "n": 4096, "k": 4096, "latency_us": 12.0}
    pd.DataFrame([row] * 3, index=[7, 7, 7]).to_parquet("repeated.parquet")
    assert list(table_file.read(Path("repeated.parquet")).index) == [0, 1, 2]
    assert main(["calibrate", "validate", "repeated.parquet", "--format", "json"]) == 0
    assert '"rows": 3' in capsys.readouterr().out
    pd.DataFrame([row]).set_index("device").to_parquet("indexed.parquet")
    assert table_file.read(Path("indexed.parquet"))["device"].tolist() == ["h100_sxm"]


def test_two_columns_of_one_name_are_refused() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([[2]])], names=["m", "m"]), "twice.parquet")
    with pytest.raises(UserError, match=r"'twice.parquet' has several columns 'm'|cannot read"):
        table_file.read(Path("twice.parquet"))


def test_a_file_that_states_no_size_is_bounded_while_it_is_read() -> None:
    """Files of /proc are regular and state 0 bytes."""
    status = Path("/proc/self/status")
    if not status.is_file():
        pytest.skip("no /proc")
    assert files.content(status, 2**20, "not a config")
    with pytest.raises(UserError, match="is larger than 0 KiB; not a config"):
        files.content(status, 10, "not a config")
