"""Campaigns: chunks on real workers of Dask, one of them killed, a killed client, and folders that do not fit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError, missing_extra
from llmviewer.planning import campaign as campaigns
from llmviewer.planning import cluster
from llmviewer.planning.campaign import Campaign, compute, file_hash, simulation_campaign, sweep_campaign
from llmviewer.planning.data_set import DataSet, data_set
from tests.answers import refusal

distributed = pytest.importorskip("distributed")
ROOT = Path(__file__).resolve().parent.parent
#: Lists of a sweep: 2 models x 2 efficiencies, of which ideal times have no bounds, x 4 x 9 points.
MODELS, EFFICIENCIES = ("llama-3.2-1b", "llama-2-7b"), ("calibrated", "ideal")
SIZES = {"batch_size": "1,2,4,8", "input_len": "128:192:+8", "output_len": "128"}
POINTS = 4 * 9
LINE = "sweep llama-3.2-1b --hardware a6000 --batch-size 1,2 --input-len 64 --output-len 4"
#: Begins the campaign of these tests on a scheduler, as another process.
CLIENT = """
import sys
from pathlib import Path
from llmviewer.planning.campaign import run
from tests.test_campaign import campaign
if __name__ == "__main__":
    run(campaign(), sys.argv[1], sys.argv[2])
"""


def configurations() -> list[dict[str, Any]]:
    return [{"model": model, "hardware": "a6000", "efficiency": one} for model in MODELS for one in EFFICIENCIES]


def campaign(**changed: str) -> Campaign:
    """144 rows in 4 x 4 chunks of at most 10 points."""
    return sweep_campaign(configurations(), {**SIZES, **changed}, most_points=10)[0]


def direct() -> pd.DataFrame:
    """The rows of the same sweep in this process, with every column."""
    lists = {name: list(map(int, text.split(","))) for name, text in SIZES.items() if ":" not in text}
    made = lv.sweep(list(MODELS), "a6000", efficiency=list(EFFICIENCIES), input_len=range(128, 193, 8), **lists)
    return pd.concat([pd.DataFrame(chunk) for chunk in made.chunks()], ignore_index=True)


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    keys = ["model", "efficiency", "output_len", "input_len", "batch_size"]
    texts = {name: str for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])}
    return frame.astype(texts).sort_values(keys, ignore_index=True)[sorted(frame.columns)]


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    """A scheduler with two worker processes, which are started again when they are killed."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as made:
        yield made


@pytest.fixture
def client(workers: Any) -> Iterator[Any]:
    with distributed.Client(workers, set_as_default=False) as made:
        yield made


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long to start a worker."""
    monkeypatch.setattr(cluster, "PATIENCE_S", 300)


def files(folder: Path) -> dict[str, int]:
    """Time of the last change of every part of a data set."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*/*/part-*.parquet")}


def is_idle(client: Any) -> bool:
    """Whether no worker has a task, nor still runs one that nobody waits for."""
    running = client.run(lambda dask_worker: len(dask_worker.active_threads))
    return not any(client.processing().values()) and not any(running.values())


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_killed_worker_costs_no_row_and_doubles_none(workers: Any, client: Any, tmp_path: Path) -> None:
    """144 rows: 4 configurations x 36 points, 10 + 10 + 10 + 6 in a chunk, to the bit those of `lv.sweep`."""
    killed: list[int] = []
    done: list[int] = []

    def advance(rows: int) -> None:
        done.append(rows)
        if sum(done) >= 20 and not killed:
            killed.extend(client.run(os.getpid).values())
            os.kill(killed[0], signal.SIGKILL)

    ran = campaigns.run(campaign(), str(tmp_path / "set"), workers.scheduler_address, advance)
    assert (ran.found, ran.computed, sum(done)) == (0, 16, 4 * POINTS)
    wait_for(lambda: len(found := client.run(os.getpid)) == 2 and killed[0] not in found.values())
    assert len(files(tmp_path / "set")) == 16
    pd.testing.assert_frame_equal(in_order(pd.read_parquet(tmp_path / "set")), in_order(direct()), check_exact=True)


def test_a_killed_client_resumes_with_the_missing_chunks_only(workers: Any, client: Any, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    words = [sys.executable, "-c", CLIENT, str(folder), workers.scheduler_address]
    process = subprocess.Popen(words, cwd=ROOT)
    wait_for(lambda: len(files(folder)) >= 2)
    process.kill()
    process.wait()
    wait_for(lambda: is_idle(client))  # chunks that were begun are written yet
    before = files(folder)
    assert 2 <= len(before) < 16

    ran = campaigns.run(campaign(), str(folder), workers.scheduler_address)
    assert (ran.found, ran.computed) == (len(before), 16 - len(before))
    after = files(folder)
    assert len(after) == 16 and {name: after[name] for name in before} == before
    pd.testing.assert_frame_equal(in_order(pd.read_parquet(folder)), in_order(direct()), check_exact=True)
    again = campaigns.run(campaign(), str(folder), "tcp://127.0.0.1:9")
    assert (again.found, again.computed) == (16, 0), "nothing is missing, so that no scheduler is asked"

    damaged = next(folder.glob("*/*/part-*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert campaigns.run(campaign(), str(folder), workers.scheduler_address).computed == 1


def test_a_worker_without_the_folder_sends_its_rows(tmp_path: Path) -> None:
    """The token of the manifest tells a worker whether the folder of that name is the campaign's."""
    asked = campaign()
    made = data_set(str(tmp_path / "set"), asked.manifest())
    made.begin(asked.manifest())
    elsewhere = replace(made, token="another machine's")
    sent = campaigns.compute("sweep", 3, asked.chunks[3].words, asked.inputs, elsewhere)
    assert sent.content is not None and not files(made.folder)
    made.store(sent.path, sent.content)
    written = campaigns.compute("sweep", 3, asked.chunks[3].words, asked.inputs, made)
    assert written.content is None and made.finished([chunk.rows for chunk in asked.chunks]) == ({3}, ())
    assert asked.chunks[3].rows == POINTS - 3 * 10


def test_a_row_of_a_simulation_is_what_simulate_says(workers: Any, tmp_path: Path) -> None:
    """At 1000 requests/s one chip is saturated, and its limit does not hold."""
    load: dict[str, Any] = {"requests": 60, "input_len": "64", "output_len": "8", "ttft": "p99:9s"}
    line = f"simulate llama-3.2-1b --hardware a6000 --request-rate 5,1000 --requests {load['requests']} "
    line += f"--input-len 64 --output-len 8 --ttft p99:9s --scheduler {workers.scheduler_address} -o {tmp_path}/set/"
    assert main(line.split()) == 0
    rows = pd.read_parquet(tmp_path / "set").sort_values("request_rate", ignore_index=True)
    for row, rate in zip(rows.to_dict("records"), (5.0, 1000.0), strict=True):
        made = lv.simulate("llama-3.2-1b", "a6000", request_rate=rate, **load)
        document = made.to_dict()
        assert (row["saturated"], row["holds"], row["requests"]) == (made.saturated, made.holds, 60)
        assert row["ttft_p99_s"] == document["ttft_s"]["p99"]
        assert row["output_tokens_per_s"] == document["output_tokens_per_s"]
        bounds = document["intervals"]["calibration"]["output_tokens_per_s"]["80"]
        assert [row["output_tokens_per_s_low80"], row["output_tokens_per_s_high80"]] == bounds
        assert (row["model"], row["hardware"], row["ttft"]) == ("llama-3.2-1b", "a6000", "p99:9s")


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"batch_size": "1,2,4,9"}, "batch_size 1,2,4,8 there, 1,2,4,9 here"),
        ({"output_len": "2"}, "output_len 128 there"),
    ],
)
def test_the_folder_of_another_campaign_is_refused(changed: dict[str, str], difference: str, tmp_path: Path) -> None:
    manifest = campaign().manifest()
    data_set(str(tmp_path / "set"), manifest).begin(manifest)
    with pytest.raises(UserError, match="another campaign") as error:
        campaigns.run(campaign(**changed), str(tmp_path / "set"))
    assert difference in str(error.value)
    with pytest.raises(UserError, match="another version"):
        data_set(str(tmp_path / "set"), {**manifest, "key": "of another version"})


def test_a_chunk_is_refused_by_another_llmviewer_and_by_other_files(tmp_path: Path) -> None:
    """The chip file of the campaign has changed where the worker reads it."""
    asked, chip = campaign(), tmp_path / "chip.yaml"
    chip.write_text("name: x\n")
    made = data_set(str(tmp_path / "set"), asked.manifest())
    changed = replace(asked.inputs, files={str(chip): file_hash(str(chip))})
    chip.write_text("name: y\n")
    with pytest.raises(UserError, match=r"chip\.yaml', or reads another file"):
        campaigns.compute("sweep", 0, asked.chunks[0].words, changed, made)
    with pytest.raises(UserError, match="another version of llmviewer"):
        campaigns.compute("sweep", 0, asked.chunks[0].words, replace(asked.inputs, package="0"), made)


def test_the_users_own_files_belong_to_the_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace is read by its relative path in the folder of the command, wherever a worker stands."""
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.0,64,4\n2024-05-10 00:00:01.0,64,4\n"
    )
    monkeypatch.chdir(tmp_path)
    asked = simulation_campaign([{"model": "llama-3.2-1b", "hardware": "a6000", "trace": "trace.csv"}])
    assert asked.inputs.files == {str(trace): file_hash(str(trace))}
    made = data_set("set", asked.manifest())
    monkeypatch.chdir("/")
    assert campaigns.compute("simulate", 0, asked.chunks[0].words, asked.inputs, made).content is not None
    assert Path.cwd() == Path("/")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--scheduler tcp//x:1 -o set/", "scheduler is 'tcp//x:1'; allowed: tcp://HOST:PORT, local"),
        ("--scheduler local:0 -o set/", "scheduler is 'local:0'; allowed"),
        ("--scheduler local", "--scheduler computes into a folder; give one: -o FOLDER/"),
        ("-o set/ --format csv", "format is 'csv'; a folder of a campaign has Parquet files"),
        ("-o none/set/", "the folder above it does not exist"),
        ("--scheduler local -o file", "'file' is a file; a campaign writes a folder"),
        ("-o other/", "'other/' has files that are of no campaign"),
        ("--scheduler foo://x:1 -o set/", "no scheduler of Dask answers at 'foo://x:1': unknown address scheme"),
        ("--scheduler tcp://127.0.0.1:9 -o set/", "no scheduler of Dask answers at 'tcp://127.0.0.1:9'"),
    ],
)
def test_wrong_words_are_one_line(
    words: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "PATIENCE_S", 0.5)
    Path("file").touch()
    Path("other").mkdir()
    Path("other/notes.txt").touch()
    assert told in refusal(f"{LINE} {words}".split(), capsys)
    assert not Path("set").exists()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    line = refusal(f"{LINE} -o none-such-folder/".split(), capsys)
    assert line == f"error: {missing_extra('campaigns need dask and distributed', 'scale')}"
    assert not Path("none-such-folder").exists()


def test_a_port_of_something_else_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server whose first bytes would be the length of a message that no memory holds."""
    monkeypatch.setattr(cluster, "PATIENCE_S", 120)

    def greet() -> None:
        with server.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 8)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet)
        thread.start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        words = f"{LINE} --scheduler {address} -o {tmp_path}/set/".split()
        assert "something else answers" in refusal(words, capsys)
        thread.join()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="process groups of POSIX")
def test_ctrl_c_keeps_what_is_finished_and_says_so(tmp_path: Path) -> None:
    """A terminal sends the signal to the command and to its workers alike; 660,000 rows take many seconds."""
    line = "sweep llama-2-7b --hardware a6000 --batch-size 1:20000 --input-len 128:192:+2 --output-len 128 -o set/"
    words = [sys.executable, "-m", "llmviewer", *line.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        words,
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    wait_for(lambda: len(files(tmp_path / "set")) >= 1)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 130
    assert told.splitlines()[-1] == "interrupted; 'set/' keeps what is finished, and the same command resumes"
    assert "Traceback" not in told
    assert not list((tmp_path / "set").glob("**/.part-*"))


def whole_set(folder: Path) -> tuple[DataSet, list[int]]:
    """A folder with the 16 parts of the campaign, computed here."""
    asked = campaign()
    made = data_set(str(folder), asked.manifest())
    made.begin(asked.manifest())
    for index, chunk in enumerate(asked.chunks):
        compute(asked.kind, index, chunk.words, asked.inputs, made)
    return made, [chunk.rows for chunk in asked.chunks]


def test_a_part_whose_pages_have_changed_is_not_taken(tmp_path: Path) -> None:
    """One bit of a page: the rows are as many as before."""
    made, rows = whole_set(tmp_path / "set")
    assert made.finished(rows) == (set(range(16)), ())
    damaged = sorted((tmp_path / "set").rglob("*.parquet"))[5]
    content = bytearray(damaged.read_bytes())
    content[200] ^= 1
    damaged.write_bytes(content)
    found, foreign = made.finished(rows)
    assert len(found) == 15 and foreign == (damaged.relative_to(tmp_path / "set").as_posix(),)


def test_parquet_files_of_something_else_are_named_and_not_counted(tmp_path: Path) -> None:
    made, rows = whole_set(tmp_path / "set")
    part = sorted((tmp_path / "set").rglob("*.parquet"))[0]
    for name in ("notes.parquet", "model=x/hardware=y/other.parquet", f"model=x/hardware=y/{part.name}"):
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(part.read_bytes())
    part.unlink()
    found, foreign = made.finished(rows)
    assert len(found) == 15 and len(foreign) == 3


def test_a_second_run_keeps_the_unfinished_files_of_the_first(tmp_path: Path) -> None:
    first, rows = whole_set(tmp_path / "set")
    second = data_set(str(tmp_path / "set"), campaign().manifest())
    unfinished = tmp_path / "set" / f".part-{first.run}-1"
    unfinished.touch()
    second.clear()
    assert unfinished.exists()
    first.clear()
    assert not unfinished.exists() and len(second.finished(rows)[0]) == 16


def test_a_row_of_a_sizing_is_what_size_says(tmp_path: Path) -> None:
    line = "size llama-3.2-1b --hardware a6000,t4 --request-rate 2 --requests 100 --ttft 500ms --batching continuous"
    assert main([*line.split(), "--scheduler", "local:1", "-o", f"{tmp_path}/sizes/"]) == 0
    rows = pd.read_parquet(tmp_path / "sizes").set_index("hardware")
    for chip in ("a6000", "t4"):
        made = lv.size("llama-3.2-1b", chip, request_rate=2, requests=100, ttft="500ms", batching="continuous")
        best, row = made.to_dict()["best"], rows.loc[chip]
        assert bool(row["feasible"]) == (best is not None)
        if best is not None:
            assert (row["devices"], row["ttft_s"], row["command"]) == (best["devices"], best["ttft_s"], best["command"])
