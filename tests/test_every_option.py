"""Every option of every command acts, is refused, or is named in a note, in a case where it must matter."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from llmviewer.cli import COMMANDS, main
from llmviewer.cli.app import command_tree
from llmviewer.server import arguments as described
from llmviewer.server.calls import CALLS
from llmviewer.techniques.options import OPTIONS
from tests.option_cases import ELSEWHERE, LOAD, OUTPUT, OWN, PLOTS, RUN, Case

ROOT = Path(__file__).resolve().parent.parent
SIZES = {"--batch-size": "4", "--input-len": "256", "--output-len": "8"}
OF_LOAD = {"--request-rate": "20", "--requests": "60", "--input-len": "256", "--output-len": "8"}
#: What `size` searches unless it is stated.
SEARCHED = {
    "--engine": "vllm", "--quantization": "none", "--kv-cache-dtype": "auto", "--tensor-parallel-size": "1",
    "--batching": "continuous",
}  # fmt: skip
#: Command -> what is typed in front of the options of a case, and what stays unless the case has it.
LINES: dict[str, tuple[str, dict[str, str]]] = {
    **dict.fromkeys(("analyze", "sweep", "compare", "advise", "elasticity"), ("", SIZES)),
    "explain": ("e2e_s", SIZES),
    "crossover": ("", {"--batch-size": "4", "--context": "256", "--output-len": "8"}),
    "require": ("", {**SIZES, "--vary": "bandwidth", "--tpot": "100ms"}),
    "train": ("", {"--batch-size": "4", "--input-len": "256"}),
    "fit": ("", {"--context": "264"}),
    "trace": ("", {**SIZES, "-o": "-", "--steps": "1"}),
    "simulate": ("", OF_LOAD),
    "size": ("", {**OF_LOAD, "--ttft": "2s", **SEARCHED}),
    "why": ("", SIZES),
    "check": ("", {"--batch-size": "4"}),
    "diagnose": ("sums.csv", {"--stage": "decode", "--batch-size": "32", "--input-len": "2000"}),
    "report": ("", SIZES),
    "plot": ("latency", SIZES),
}
#: Kind of plot, and commands under a load -> what stays there in place of the sizes.
LOADED = {"report": {**OF_LOAD, "--batch-size": "4"}, "plot": OF_LOAD}
#: Commands of which a part of the answer says whether an option acts -> what asks for that part alone.
PARTS = {"explain": ["--depth", "2"], "advise": ["--max-gpus", "1"]}
#: Commands that take long for each option, or share the answer of `analyze`.
SLOW = ("sweep", "compare", "crossover", "elasticity", "require", "trace", "check", "diagnose")
SLOW += ("explain", "advise", "simulate", "size", "why", "report", "plot", "fit")
#: What states the question again in an answer.
ECHO = {
    *("workload", "parallelism", "techniques", "options", "request", "provenance", "line", "warnings", "values"),
    *("name", "seed", "metric", "target", "now"),
    *OPTIONS,
}
#: Objects of an answer whose names are titles of configurations, which list their options.
TITLED = ("loads",)
#: Option -> why it is not tried here.
NOT_TRIED = {
    "trace_model": "test_trace_model.py: it needs transformers",
    "launch_line": "test_launch_line.py: it stands for a model and options",
}


@cache
def parameters(command: str) -> list[Any]:
    return [one for one in command_tree(COMMANDS, command).commands[command].params if one.param_type_name == "option"]


def case_of(command: str, name: str) -> Case | None:
    of_load = LOAD if command in ("simulate", "size", *LOADED) else {}
    if command in LOADED and name in SIZE_NAMES:
        of_load = {}
    return OWN.get(command, {}).get(name) or of_load.get(name) or RUN.get(name)


SIZE_NAMES = ("batch_size", "input_len", "output_len")
PAIRS = [
    pytest.param(command, one.name, marks=[pytest.mark.slow] if command in SLOW else [], id=f"{command}-{one.name}")
    for command in LINES
    for one in parameters(command)
    if one.name not in (*OUTPUT, *NOT_TRIED, "model", "hardware")
] + [
    pytest.param(command, name, marks=[pytest.mark.slow] if command in SLOW else [], id=f"{command}-{name}")
    for command in ("why", "check")
    for name in OPTIONS
    if name not in NOT_TRIED and (command == "why" or name not in SIZE_NAMES)
]


def test_every_option_of_every_command_has_a_case() -> None:
    """A new command or option is red here until the table says in which case it must matter."""
    assert set(COMMANDS) == set(LINES) | set(ELSEWHERE)
    without = [f"{one.values[0]} {one.values[1]}" for one in PAIRS if case_of(*one.values) is None]
    assert not without


@pytest.mark.parametrize("call", [one for one in CALLS if one in LINES])
def test_every_argument_of_the_other_doors_is_an_option_of_the_command(call: str) -> None:
    """Python, HTTP and assistants take the options of the command, which the cases walk; `price` and such included."""
    typed = {one.name for one in command_tree(COMMANDS, call).commands[call].params} | {*OPTIONS, "launch_line"}
    assert set(described.schema(call)["properties"]) <= typed


@pytest.fixture(scope="module")
def folder_of_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all cases: what was read for one is valid for the next as long as it runs in the same folder."""
    folder = tmp_path_factory.mktemp("cases")
    write_inputs(folder)
    return folder


@pytest.fixture(autouse=True)
def case_files(folder_of_cases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder_of_cases)


def write_inputs(folder: Path) -> None:
    """The files that the cases read."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "trace.csv").write_text(TRACE)
    (folder / "sums.csv").write_text(SUMS)
    (folder / "timed.csv").write_text("stage,name,time_s\ndecode,q_proj,1e-5\nprefill,q_proj,1e-4\n")
    (folder / "prices.yaml").write_text(PRICES)
    (folder / "calibrate").symlink_to(ROOT / "calibrate")


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048,
    "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000,
    "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "novelty": 3,
}  # fmt: skip
PRICES = "{source: s, date: 2026-01-02, kind: rented, term: t, rows: [{chip: a100, usd_per_gpu_hour: 9}]}"
#: Ten passes of 16 layers.
SUMS = 'Total Time (ns),Instances,Name\n50000000,640,"nvjet_tst"\n30000000,160,"flash_fwd_kernel"\n'
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2024-05-10 00:00:{second:02d}.{part}00000,{64 + 7 * second},{4 + second % 5}\n"
    for second in range(30)
    for part in range(0, 10, 5)
)


@pytest.mark.parametrize(("command", "name"), PAIRS)
def test_an_option_acts_or_is_refused_or_named(command: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    case, spelled = case_of(command, name), spelling(command, name)
    assert case is not None
    stated = answered(command, name, typed_of(command, name), capsys)
    short = OPTIONS[name].spellings(name)[-1] if name in OPTIONS else spelled  # llama.cpp's, as people type them
    told = rf"{re.escape(spelled)}|(?<![\w-]){re.escape(short)}[ :]"
    if stated[0] == 2:
        assert len(stated[2].splitlines()) == 1
        assert re.search(told, stated[2])  # and is no refusal of another option of the case
        return
    plain = plainly(command, name, shlex.split(f"{case.beside} {case.without}"), capsys)
    assert stated[:2] != plain or re.search(told, stated[2]), stated[2]


#: Status and figures of answers without the option of a case, by command line: many cases share one.
PLAIN: dict[tuple[str, ...], tuple[int, list[Any]]] = {}


def plainly(command: str, name: str, typed: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[Any]]:
    """Status and figures of an answer, computed once for each command line (or contract)."""
    key = tuple(Path(word).read_text() if word.endswith("yaml") else word for word in typed_line(command, name, typed))
    if key not in PLAIN:
        PLAIN[key] = answered(command, name, typed, capsys)[:2]
    return PLAIN[key]


def spelling(command: str, name: str) -> str:
    """The long form of an option."""
    spelled = next((max(one.opts, key=len) for one in parameters(command) if one.name == name), None)
    return spelled or OPTIONS[name].spellings(name)[0]


def typed_of(command: str, name: str) -> list[str]:
    """Words typed in the case of an option, beside model, chip and sizes."""
    case = case_of(command, name)
    assert case is not None
    return [*shlex.split(case.beside), spelling(command, name), *([case.value] if case.value else [])]


def answered(
    command: str, name: str, typed: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[Any], str]:
    """Status, figures and notes of an answer in the case of an option."""
    line = typed_line(command, name, typed)
    if command == "plot":
        return _drawn_as(line[1:], capsys)
    part = PARTS.get(command, [])
    line += part if part and part[0] not in line else []
    status = main([*line, *([] if command == "trace" else ["--format", "json"])])
    out, err = capsys.readouterr()
    if status == 2:
        return status, [], err
    document = json.loads(out)
    return status, list(figures(document)), "\n".join([err, *notes(document)])


def typed_line(command: str, name: str, typed: list[str]) -> list[str]:
    """The command line of a case, without the format of its output; `check` gets a file, which is written here."""
    first = LINES[command][0]
    run, beside, words = line_of(command, name, typed)
    if command == "plot":
        return ["plot", PLOTS.get(name, "latency-cdf" if _is_loaded(command, name) else first), *run, *beside, *words]
    if command == "check":
        return ["check", contract(run, words, f"contract-{name}.yaml")]
    if command == "why":
        metric = words[words.index("--metric") :][:2] if "--metric" in words else []
        rest = _without(words, "--metric")
        return [command, shlex.join([*run, *_pairs(SIZES)]), shlex.join([*run, *beside, *rest]), *metric]
    return [command, *first.split(), *run, *beside, *words]


def line_of(command: str, name: str, typed: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Words of the case of an option: model and chip, what stays beside the typed words, and these."""
    case = case_of(command, name)
    assert case is not None
    kept = LOADED[command] if _is_loaded(command, name) else LINES[command][1]
    words = [word.replace("TRACE", "trace.csv") for word in typed]
    beside = [word for pair in kept.items() if pair[0] not in words and _long(pair[0]) not in words for word in pair]
    if {"--concurrency", "--trace", "--burst", "--rate-curve"} & set(words):
        beside = _without(beside, "--request-rate")
    if {"--trace", "--lengths", "--sessions"} & set(words):
        beside = _without(_without(beside, "--input-len"), "--output-len")
    if command == "require" and {"--ttft", "--e2e", "--tokens-per-s"} & set(words):
        beside = _without(beside, "--tpot")
    chips = f"{case.hardware},h100-sxm" if command == "crossover" else case.hardware  # it needs two configurations
    named = "config.json" if case.model == "CONFIG" else case.model
    subject = [named] if command != "fit" else [] if "--models" in words else ["--models", named]
    return [*subject, "--hardware", chips], beside, words


def _is_loaded(command: str, name: str) -> bool:
    return command in LOADED and name in LOAD and name not in SIZE_NAMES


def contract(run: list[str], words: list[str], file: str = "contract.yaml") -> str:
    """A file of lines on a configuration with options, whose sizes stand in the conditions."""
    batch = words[words.index("--batch-size") + 1] if "--batch-size" in words else "4"
    text = " ".join(("-", *_without(words, "--batch-size"))).replace(" --", ", ").replace(" -", ", ")
    subject = f"{run[0]} on {run[2]}{text.removeprefix('-')}".replace("enforce-eager ", "enforce-eager true ")
    metrics = ("ttft_s", "tpot_s", "memory.total_bytes", "e2e_s")
    lines = [f"- {subject}: {one} >= 0 at batch {batch}, input 256, output 8" for one in metrics]
    if batch == "4":
        lines.append(f"- {subject}: ttft_s >= 0 at 20 requests/s, requests 20, input 256, output 8")
    Path(file).write_text("\n".join(lines))
    return file


def _drawn_as(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[Any], str]:
    """Status, places of what is drawn, and notes of a plot."""
    drawn: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmviewer.cli.plot.command.save", lambda figure, path: drawn.extend(_places(figure)))
        status = main(["plot", *words, "-o", "drawn.svg"])
    _, err = capsys.readouterr()
    return status, drawn, err


def _places(figure: Any) -> Iterator[Any]:
    for axes in figure.axes:
        yield from (line.get_xydata().tolist() for line in axes.lines)
        for patch in axes.patches:
            yield patch.get_path().transformed(patch.get_patch_transform()).vertices.tolist()
        for one in axes.collections:
            yield from (path.vertices.tolist() for path in one.get_paths())
            yield one.get_offsets().tolist()


def _pairs(words: dict[str, str]) -> list[str]:
    return [word for pair in words.items() for word in pair]


def _without(words: list[str], option: str) -> list[str]:
    at = words.index(option) if option in words else len(words)
    return [*words[:at], *words[at + 2 :]]


def _long(option: str) -> str:
    return {"-q": "--quantization", "-tp": "--tensor-parallel-size"}.get(option, option)


def figures(answer: Any) -> Iterator[Any]:
    """Numbers of an answer with their keys, without what states the question again."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name in TITLED:
                yield from figures(list(value.values()))
            elif name not in ECHO:
                yield from ((name, one) for one in figures(value))
    elif isinstance(answer, list):
        for value in answer:
            yield from figures(value)
    elif isinstance(answer, int | float):
        yield answer


def notes(answer: Any) -> Iterator[str]:
    """Warnings and notes anywhere in an answer."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            yield from map(str, value) if name in ("warnings", "notes") and isinstance(value, list) else notes(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from notes(value)
