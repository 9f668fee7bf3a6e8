"""An error on the command line names the option as it was typed; callers of Python and HTTP read the argument."""

from __future__ import annotations

import ast
import pickle
import re
import shlex
from pathlib import Path

import pytest

import llmviewer
import llmviewer as lv
from llmviewer.cli import COMMANDS
from llmviewer.cli.app import command_tree
from llmviewer.core.errors import MARKED
from llmviewer.planning.options import SIZE
from llmviewer.planning.train import OWN as TRAIN
from llmviewer.result.costs import COSTS
from llmviewer.server import calls
from llmviewer.simulation.options import LOAD
from llmviewer.techniques.options import ENGINE_OPTIONS, OPTIONS
from tests.answers import refusal

CHIP = "a100-80gb-sxm"
#: Command -> a line with an answer; each of its options is given a bad value in turn.
LINES = {
    **dict.fromkeys(("analyze", "sweep", "compare", "crossover", "elasticity", "train", "trace"), ""),
    "explain": "e2e_s",
    "require": "",
    "fit": "--models",
    "advise": "",
    "simulate": "",
    "size": "",
}
BESIDE = {
    "require": ["--vary", "bandwidth"],
    "simulate": ["--requests", "50"],
    "size": ["--requests", "50", "--ttft", "1s"],
}
#: Options that take any text: names of files, which are written or are not there.
ANY_TEXT = ("output", "timeline", "trace", "lengths")
BAD = "-bogus!"


@pytest.mark.parametrize("command", LINES)
def test_a_bad_value_is_told_with_the_option_as_typed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for one in command_tree(COMMANDS, command).commands[command].params:
        if one.param_type_name != "option" or one.is_flag or one.name in (*ANY_TEXT, "help"):
            continue
        beside = {option: word for option, word in _pairs(BESIDE.get(command, [])) if option not in one.opts}
        chip = [] if one.name == "hardware" else ["--hardware", CHIP]
        rate = [] if command not in ("simulate", "size") or one.name in SOURCES else ["--request-rate", "2"]
        if one.name == "start_up":
            rate = ["--rate-curve", "0h:2,12h:4", "--autoscale", "5m"]
        if one.name == "autoscale":
            rate = ["--rate-curve", "0h:2,12h:4"]
        target = ["--tpot", "10ms"] if command == "require" and one.name not in TARGETS else []
        words = [command, *LINES[command].split(), "llama-3.2-1b", *chip, *rate, *target]
        words += [word for pair in beside.items() for word in pair]
        for spelled in one.opts:
            typed = [f"{spelled}={BAD}"] if spelled.startswith("--") else [spelled, BAD.removeprefix("-")]
            line = refusal([*words, *typed], capsys)
            assert spelled in line, line
            assert "_" not in one.name or one.name not in line


SOURCES = ("request_rate", "concurrency", "trace", "burst", "rate_curve")
TARGETS = ("ttft", "tpot", "e2e", "tokens_per_s")


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("analyze MODEL --max-num-seqs 4", "--max-num-seqs is 4; it needs an engine"),
        ("simulate MODEL", "one of --request-rate, --concurrency, --trace, --burst, --rate-curve"),
        ("simulate MODEL --burst --rate-curve 0h:1", "--burst and --rate-curve both say"),
        ("simulate MODEL --request-rate 1 --speed-up 2", "curve; change --request-rate"),
        ("simulate MODEL --request-rate 1 --lengths F --input-len 64", "--input-len is '64', but --lengths"),
        ("simulate MODEL --efficiency ideal --engine vllm --request-rate 1", "--engine is 'vllm'; it needs"),
        ("train MODEL --prefix-cache 0.5", "--prefix-cache is '0.5'; a training"),
        ("size MODEL --request-rate 1", "give --ttft, --tpot or --e2e"),
        ("analyze MODEL --tp x", "--tp"),
    ],
)  # fmt: skip
def test_sentences_about_several_options_name_each_as_typed(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refusal(shlex.split(line.replace("MODEL", "llama-3.2-1b --hardware h100")), capsys)


def test_callers_of_python_read_the_argument() -> None:
    with pytest.raises(lv.UserError, match=r"^max_num_seqs is 4; it needs an engine"):
        lv.analyze("llama-3.2-1b", CHIP, max_num_seqs=4)
    with pytest.raises(lv.UserError, match=r"^prefix_cache is '0.5'; a training step has no KV cache"):
        lv.train("llama-3.2-1b", CHIP, prefix_cache="0.5")


#: Values that no option takes, each wrong in another way.
WRONG = ("bogus!", "-3", "x=1,y=2", "a=1,a=2")
#: Options whose type the parser of a command line checks.
SWITCHES = ("trace_model", "enforce_eager")


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in SWITCHES])
def test_a_wrong_value_is_told_with_the_name_of_its_door(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = {"engine": "vllm"} if name in ENGINE_OPTIONS else {}
    spelled = OPTIONS[name].spellings(name)[-1]
    for value in WRONG:
        given = {"model": "llama-3.2-1b", "hardware": CHIP, **engine, name: value}
        for call in (lambda words: lv.analyze(**words), lambda words: calls.answer("analyze", words)):
            with pytest.raises(lv.UserError) as told:
                call(given)
            assert re.search(rf"(?<![\w-]){name}(?![\w-])", str(told.value)), told.value
            assert "--" not in str(told.value)
        typed = [f"{spelled}={value}"] if spelled.startswith("--") else [spelled, value]
        beside = ["--engine", "vllm"] if engine else []
        line = refusal(["analyze", "llama-3.2-1b", "--hardware", CHIP, *beside, *typed], capsys)
        assert re.search(rf"(?<![\w-]){spelled}(?![\w-])", line), line


def test_a_mark_in_an_error_is_the_name_of_an_argument() -> None:
    """With dashes for underscores: callers of Python read it with these, as ignore_fields of `--ignore-fields`."""
    known = {*OPTIONS, *LOAD, *SIZE, *COSTS, *TRAIN, "hardware", "stage", "passes", "images", "audio"}
    marks = {
        (path.name, found[1])
        for path in Path(llmviewer.__path__[0]).rglob("*.py")
        if not {"cli", "reports", "manifests", "server"} & {*path.parts}
        for raised in ast.walk(ast.parse(path.read_text()))
        if isinstance(raised, ast.Raise)
        for part in ast.walk(raised)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
        for found in re.finditer(MARKED, part.value)
        if found[1]
    }
    assert len(marks) > 40
    assert not {(file, mark) for file, mark in marks if mark.replace("-", "_") not in known}


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("--kv-cache-dtype: bits is 'x'", "kv_cache_dtype: bits is 'x'"),
        ("add --lora, or remove --quantization", "add lora, or remove quantization"),
        ("unknown option '--kv-cache-dtype'", "unknown option '--kv-cache-dtype'"),
        ("'llama --batch-size 8' cannot be read", "'llama --batch-size 8' cannot be read"),
        ("a sequence's keys; see `nsys profile --trace cuda`", "a sequence's keys; see `nsys profile --trace cuda`"),
        ("every model's --tensor-parallel-size", "every model's tensor_parallel_size"),
    ],
)
def test_marks_outside_quotes_are_arguments_to_python(message: str, told: str) -> None:
    error = lv.UserError(message)
    assert str(error) == told
    assert error.marked == pickle.loads(pickle.dumps(error)).marked == message
