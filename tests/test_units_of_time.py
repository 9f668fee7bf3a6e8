"""A time is typed with its unit: a bare number would be read as milliseconds by some and as seconds by others."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import COMMANDS
from llmviewer.cli.app import command_tree
from llmviewer.core.errors import UserError
from llmviewer.core.parsing import duration
from llmviewer.language.option import Kind
from llmviewer.planning.options import SIZE
from llmviewer.simulation.options import LOAD
from tests.answers import refusal

RUN = "llama-3.2-1b --hardware a100-80gb-sxm"
OF_LOAD = f"{RUN} --request-rate 2 --requests 50"
OF_TIME = [name for name, one in {**LOAD, **SIZE}.items() if one.kind is Kind.TIME and name != "audio"]
#: Command -> a line that has an answer with any of its options of time.
LINES = {
    "simulate": f"simulate {OF_LOAD}",
    "size": f"size {RUN} --rate-curve 0h:1,12h:2 --requests 50 --e2e 20s --max-gpus 1",
    "require": "require llama-3.2-1b --vary bandwidth",
    "advise": f"advise {RUN}",
    "plot": f"plot frontier {RUN} --vary bandwidth,peak.bf16",
    "report": f"report {OF_LOAD} -o report.html",
}
#: Options of time of single commands, beside those of a load or a sizing.
TARGET = "target"


def options_of_time(command: str) -> list[str]:
    known = {one.name for one in command_tree(COMMANDS, command).commands[command].params}
    return [name for name in (*OF_TIME, TARGET) if name in known]


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command in LINES for name in options_of_time(command)]
)
def test_a_bare_number_is_refused_with_what_to_say(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = LINES[command]
    if command == "plot" and name != TARGET:
        line = f"plot load-timeline {OF_LOAD}"
    if name == "start_up":
        line = f"{line} --autoscale 5m"
    told = refusal(shlex.split(f"{line} --{name.replace('_', '-')} 500"), capsys)
    assert "say 500ms or 500s" in told


@pytest.mark.parametrize("command", ["analyze", "simulate"])
def test_seconds_of_sound_have_a_unit(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"{command} whisper-large-v3 --hardware l4 --audio 500"
    assert "say 500ms or 500s" in refusal(shlex.split(line), capsys)


def test_every_command_with_a_limit_on_times_is_walked() -> None:
    assert {
        one for one in COMMANDS if one not in ("calibrate", "models", "hardware", "techniques") and options_of_time(one)
    } == set(LINES)


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("1.5h", 5400.0), ("0", 0.0), (0.25, 0.25)])
def test_a_time_is_its_number_times_its_unit(text: Any, seconds: float) -> None:
    assert duration("ttft", text) == seconds


def test_numbers_of_python_are_seconds() -> None:
    assert lv.require("llama-3.2-1b", "a100-80gb-sxm", vary="bandwidth", tpot=0.01).target == 0.01
    (limit,) = lv.advise("llama-3.2-1b", "a100-80gb-sxm", tpot=0.01).goal.limits
    assert limit.seconds == 0.01
    made = lv.simulate("llama-3.2-1b", "a100-80gb-sxm", request_rate=2, requests=50, ttft=0.5)
    assert [one.seconds for one in made.limits] == [0.5]
    with pytest.raises(UserError, match="say 10ms or 10s"):
        lv.require("llama-3.2-1b", "a100-80gb-sxm", vary="bandwidth", tpot="10")
