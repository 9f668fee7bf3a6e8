"""A profile with any type in any field is answered or refused in one line, and times that cannot be are cut."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.calibrate.diagnosis.annotation import work_of
from llmviewer.calibrate.diagnosis.recording import Kernel, in_order
from llmviewer.cli import main
from llmviewer.core.errors import UserError

MARK = "execute_context_1(512)_generation_0(0)"
#: What stands in a field instead of its own value.
WRONG: tuple[Any, ...] = (None, [], [1], {}, "text", "", True, -1, 1e300, 10**400, 0)
SECRET, PASSWORD = "hf_AbCdEfGhIjKlMnOpQrStUvWx", "correct horse battery staple"


def event(category: str, name: str, at: float, dur: float, pid: int = 0, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": 7, "ts": at, "dur": dur, "args": args}


def trace() -> dict[str, Any]:
    """Three passes of two kernels, 100 µs each, 1 ms apart; the first operator has shapes."""
    events = []
    for number in range(3):
        at, one, two = 1000.0 * number, 2 * number + 1, 2 * number + 2
        events += [
            event("user_annotation", MARK, at, 900.0, 1),
            event("cpu_op", "aten::mm", at, 9.0, 1, **{"External id": one, "Input Dims": [[512, 4096], [4096, 6144]]}),
            event("cuda_runtime", "cudaLaunchKernel", at + 1.0, 5.0, 1, correlation=one, **{"External id": one}),
            event("kernel", "ampere_bf16_s16816gemm_bf16", at + 20.0, 100.0, correlation=one, stream=7, device=0),
            event("cuda_runtime", "cudaLaunchKernel", at + 9.0, 5.0, 1, correlation=two),
            event("kernel", "flash_fwd_kernel", at + 130.0, 100.0, correlation=two, stream=7, device=0),
        ]
    return {
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}],
        "distributedInfo": {"world_size": 1},
        "traceEvents": events,
    }


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [above, *(path for key, one in inner for path in places(one, (*above, key)))]


def planted(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = deepcopy(content)
    if not path:
        return value
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def answered(path: Path) -> None:
    """A diagnosis, or one line why there is none."""
    try:
        found = lv.diagnose(path, "llama-3.1-8b", "a100").to_dict()
    except UserError as error:
        assert str(error)
    else:
        assert found["measured_s"] >= 0.0


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(at=st.sampled_from(places(trace())), wrong=st.sampled_from(WRONG))
@example(at=("traceEvents", 3, "args"), wrong=None)
@example(at=("deviceProperties",), wrong="text")
@example(at=("deviceProperties", 0), wrong=None)
@example(at=("traceEvents", 1, "args", "Input Dims"), wrong=[[None, "a"], 3])
def test_any_value_in_any_field_of_a_trace_is_answered_or_refused(
    at: tuple[Any, ...], wrong: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    path.write_text(json.dumps(planted(trace(), at, wrong)))
    answered(path)


TABLES = {
    "StringIds": {"id": 1, "value": "ampere_bf16_s16816gemm_bf16"},
    "CUPTI_ACTIVITY_KIND_KERNEL": {
        "start": 1000, "end": 2000, "deviceId": 0, "streamId": 7, "correlationId": 1, "demangledName": 1,
        "globalPid": 2**24,
    },
    "CUPTI_ACTIVITY_KIND_RUNTIME": {"start": 900, "end": 950, "correlationId": 1, "globalTid": 2**24},
    "NVTX_EVENTS": {"start": 800, "end": 5000, "text": MARK, "globalTid": 2**24},
    "TARGET_INFO_GPU": {"id": 0, "name": "NVIDIA A100-SXM4-80GB"},
}  # fmt: skip


def export(path: Path, changed: dict[str, dict[str, Any]]) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as base, base:
        for name, row in changed.items():
            base.execute(f"CREATE TABLE {name} ({', '.join(row)})")
            base.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
    return path


@pytest.mark.parametrize("wrong", [None, "text", "", -1, 1e300, 2**62, b"\xff"])
@pytest.mark.parametrize("place", [(table, column) for table, row in TABLES.items() for column in row], ids="-".join)
def test_any_value_in_any_column_of_an_export_is_answered_or_refused(
    place: tuple[str, str], wrong: Any, tmp_path: Path
) -> None:
    answered(export(tmp_path / "export.sqlite", planted(TABLES, place, wrong)))


@pytest.mark.parametrize("header", ["Kernel_Name,Start_Timestamp,End_Timestamp", "Name,Calls,TotalDurationNs"])
@pytest.mark.parametrize("row", ["a", "a,,", "a,x,1", "a,1,x", "a,1e400,2", "a,nan,inf", "a,9,1", "a,1,2,3"])
def test_any_value_in_a_table_is_answered_or_refused(header: str, row: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"{header}\n{row}\n")
    answered(path)


# --- kernels that overlap ---------------------------------------------------------------------------------------------


def kernels(*spans: tuple[float, float], launches: tuple[float | None, ...] = ()) -> list[Kernel]:
    given = zip(spans, launches or (None,) * len(spans), strict=True)
    return [Kernel(name="k", start_s=a * 1e-6, seconds=(b - a) * 1e-6, launch_s=one) for (a, b), one in given]


@pytest.mark.parametrize(
    ("found", "lengths"),
    [
        (kernels((0, 10), (10, 20)), (10, 10)),
        (kernels((0, 1_600_000), (10, 20), (30, 40)), (10, 10, 10)),  # the overflow of a counter
        (kernels((0, 12), (10, 20)), (12, 10)),  # the next begins while this one ends (dependent launch)
        (kernels((0, 100), (10, 20), launches=(1.0, 1.0)), (100, 10)),  # branches of one replayed graph
        (kernels((0, 100), (10, 20), (30, 40), launches=(1.0, 1.0, 2.0)), (10, 10, 10)),
    ],
)
def test_a_kernel_that_outlasts_the_next_launch_is_cut(found: list[Kernel], lengths: tuple[float, ...]) -> None:
    ordered, notes = in_order(found)
    assert [kernel.seconds * 1e6 for kernel in ordered] == pytest.approx(lengths)
    assert bool(notes) is ([kernel.seconds for kernel in found] != [kernel.seconds for kernel in ordered])


def test_kernels_of_other_streams_may_overlap() -> None:
    beside = [Kernel(name="a", start_s=0.0, seconds=9.0), Kernel(name="b", start_s=1.0, seconds=1.0, stream=1)]
    assert in_order(beside) == (tuple(beside), ())


def test_one_overflowed_kernel_does_not_change_the_time_of_a_pass(tmp_path: Path) -> None:
    """Passes begin 1 ms apart and the last ends 230 µs after its start: (1000 + 1000 + 210) / 3 + ... as without it."""
    whole, broken = tmp_path / "whole.json", tmp_path / "broken.json"
    content = trace()
    whole.write_text(json.dumps(content))
    content["traceEvents"][3]["dur"] = 1.6e6
    broken.write_text(json.dumps(content))
    before, after = (lv.diagnose(path, "llama-3.1-8b", "a100") for path in (whole, broken))
    assert after.measured_s == pytest.approx(before.measured_s, rel=0.01)
    assert any("overlaps the following ones of the same stream" in line for line in after.warnings)
    assert not any("overlap" in line for line in before.warnings)


def test_a_pass_of_other_times_than_those_of_its_work_is_left_out(tmp_path: Path) -> None:
    """The last kernel of the second of three passes takes 900 µs instead of 100, and overlaps none."""
    path = tmp_path / "trace.json"
    content = trace()
    for late in content["traceEvents"][12:]:
        late["ts"] += 2000.0
    content["traceEvents"][11]["dur"] = 900.0
    path.write_text(json.dumps(content))
    found = lv.diagnose(path, "llama-3.1-8b", "a100")
    assert "1 pass whose kernels take over 3 times the median of passes of the same work is left out" in found.warnings


# --- marks and processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["execute_context_1(512_262144)_generation_3(3_9)", "execute_context_1(512)_generation_3(3)"]
)
def test_the_first_number_of_a_mark_is_that_of_new_tokens(text: str) -> None:
    work = work_of(text)
    assert work is not None
    assert (work.context.requests, work.context.new, work.generation.requests, work.generation.new) == (1, 512, 3, 3)


@pytest.mark.parametrize(("devices", "is_said"), [(1, True), (8, False)])
def test_another_number_of_processes_is_said(devices: int, is_said: bool, tmp_path: Path) -> None:  # noqa: FBT001
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**trace(), "distributedInfo": {"world_size": 8}}))
    found = lv.diagnose(path, "llama-3.1-8b", "a100", tensor_parallel_size=devices)
    assert any("one of 8 processes (world_size)" in line for line in found.warnings) is is_said


# --- secrets ----------------------------------------------------------------------------------------------------------

COMMANDS = (
    "analyze llama-2-7b --hardware {}",
    "analyze {} --hardware a6000",
    "analyze llama-2-7b --hardware a6000 --profile {}",
    "models show {}",
    "hardware show {}",
    "simulate llama-2-7b --hardware a6000 --trace {}",
    "diagnose {} llama-2-7b --hardware a6000",
    "check {}",
    "calibrate validate {} --hardware a6000",
    "calibrate fit {}",
)
#: Files given by mistake; S is the secret.
MISTAKES = {
    "bare": "S",
    "environment": "HF_TOKEN=S\n",
    "netrc": "machine huggingface.co login me password S\n",
    "text": '"S"',
    "list": '["S"]',
    "object": '{"token": "S"}',
    "lines": '{"token": "S"}\nS\n',
    "cut": '{"token": "S", ',
    "yaml": "token: S\n",
    "broken": "a: [S\n b: S: S",
    "table": "user,password\nme,S\n",
    "header": "user,S\n1,2\n",
    "requests": "arrival_s,input_len,output_len\n0,S,5\n",
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("secret", [SECRET, PASSWORD])
def test_no_error_repeats_what_a_file_holds(
    secret: str, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for ending in (".json", ".yaml", ".csv", ""):
        path = tmp_path / f"file{ending}"
        path.write_text(MISTAKES[name].replace("S", secret))
        for line in COMMANDS:
            assert main(line.format(path).split()) in (0, 1, 2)
            said = "".join(capfd.readouterr())
            assert not [word for word in secret.split() if word in said], (line, ending, said)
