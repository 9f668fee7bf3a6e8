"""Any input gives a result, or a one-line error that states what is wrong and what is allowed."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer import cli
from llmviewer.core import data, parsing
from llmviewer.core.errors import UserError, nearest, printable, quoted, unknown
from llmviewer.hardware import specs

from .answers import analyze

pytestmark = pytest.mark.filterwarnings("error")  # numpy's as well

Run = Callable[..., tuple[int, str, str]]
LLAMA: dict[str, Any] = data.read_yaml(data.folder("model_configs") / "llama-2-7b.yaml")["config"]
H100: dict[str, Any] = {
    key: value
    for key, value in data.read_yaml(data.folder("hardware_specs") / "h100-sxm.yaml").items()
    if key != "sources"
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command in this process, in an empty folder: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main([str(word) for word in words])
        return (status, *capsys.readouterr())

    return run


def refused(answer: tuple[int, str, str], message: str) -> None:
    """Asserts status 2, empty stdout, and one printable line on stderr that contains `message`."""
    status, out, err = answer
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.endswith("\n") and err.rstrip("\n").isprintable()
    assert len(err) < 600
    assert message in err


def one_line(error: UserError) -> None:
    assert str(error).isprintable()
    assert len(str(error)) < 600


# --- arguments -------------------------------------------------------------------------------------------------------

ANALYZE = ["analyze", "llama-2-7b", "--hardware", "a6000"]
SWEEP = ["sweep", "llama-2-7b", "--hardware", "a6000", "--format", "csv"]


@pytest.mark.parametrize(
    "value", ["", " ", "x", "nan", "inf", "-1", "0", "1.5", "1_000", "٣", "4q", 10**30, "1" * 5000, "1" * 5000 + "k"]
)
@pytest.mark.parametrize("option", ["--batch-size", "--input-len", "--output-len"])
def test_a_size_that_is_not_a_positive_integer_is_rejected(run: Run, option: str, value: object) -> None:
    refused(run(*ANALYZE, f"{option}={value}"), f"{option} is ")
    refused(run(*ANALYZE, f"{option}={value}"), "allowed: whole numbers from 1 to 1,000,000,000")


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("speculative", "llama-3.2-1b", "a smaller model: draft=NAME,"),
        ("speculative", "draft", "draft is missing; write --speculative draft=NAME"),
        ("speculative", "self", "attention is missing; write --speculative self,attention=..."),
        ("speculative", "draft=tinyllama-1.1b,tokens=4", "`llmviewer techniques show speculative` lists them"),
        ("speculative", "draft=tinyllama-1.1b,,tokens=4", "has nothing between two commas"),
        ("speculative", "eagle3,tokens=best,topk=4,nodes=9", "for a tree with topk=4 give its depth: tokens=5"),
        ("branches", "apar", "branches is missing; write --branches apar,branches=..."),
        ("branches", "skeleton", "outline is missing; write --branches skeleton,outline=..."),
        ("lora", "adapters=3", "rank is missing; write --lora rank=..."),
    ],
)
def test_an_incomplete_option_says_what_to_write(run: Run, option: str, text: str, message: str) -> None:
    refused(run("analyze", "llama-2-7b", "--hardware", "a6000", f"--{option}", text), message)


@pytest.mark.parametrize("value", ["", "x", "nan", "inf", "-1", "0", "1.1", "90"])
def test_a_utilization_is_a_fraction(run: Run, value: str) -> None:
    refused(run(*ANALYZE, f"--gpu-memory-utilization={value}"), "gpu-memory-utilization is ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([""], "unknown command '' (see llmviewer --help)"),
        (["models", ""], "unknown models command ''; allowed: fetch, list, show"),
        ([*ANALYZE, "--dtype", "w4a16"], "narrower formats are quantizations"),
        ([*ANALYZE, "--no-such-option"], "no such option"),
        ([*ANALYZE, "--" + "x" * 5000], "no such option"),
        ([*ANALYZE, "x" * 5000], "unexpected extra argument"),
        ([*ANALYZE, "--output-len", 10**9], "1,000,000,001 forward passes; allowed: at most 1,048,576"),
        ([*ANALYZE, "--input-len", 10**9, "--max-num-batched-tokens", 1], "a larger token budget"),
        (["analyze", "org/no-such-model", "--hardware", "a6000"], "download its config.json and pass the path"),
        (["analyze", "../model_configs/llama-2-7b", "--hardware", "a6000"], "cannot read"),
        (["analyze", "a\0b.json", "--hardware", "a6000"], "cannot read 'a?b.json'"),
        (["analyze", "a\0b", "--hardware", "a6000"], "unknown model 'a?b'"),
        (["analyze", "", "--hardware", "a6000"], "unknown model ''"),
        (["analyze", ".", "--hardware", "a6000"], "'.' is a directory without a config.json"),
        (["analyze", "llama-2-7b", "--hardware", "."], "'.' is a directory; expected a file"),
        (["analyze", "/dev/zero", "--hardware", "a6000"], "is a device or a pipe; expected a file"),
        (["analyze", "llama-2-7b", "--hardware", "/dev/stdin"], "expected a file"),
        (["compare", "llama-2-7b", "--hardware", ",".join(["a6000"] * 13)], "compare shows at most 12"),
        ([*SWEEP[:-1], "parquet"], "--format parquet needs a file"),
        ([*SWEEP[:-1], "html"], "unknown format 'html'; allowed: csv, json, parquet, table"),
        ([*SWEEP, "--dtype", ",".join(["fp16"] * 10001)], "10,001 configurations; allowed: at most 10,000"),
    ],
)
def test_wrong_arguments_are_a_one_line_error(run: Run, words: list[object], message: str) -> None:
    refused(run(*words), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "batch-size is ''"),
        (",,", "a number between the commas is missing"),
        ("1,", "a number between the commas is missing"),
        ("5:1", "'5:1' ends before it begins"),
        ("1:4:*1", "multiplies by 1; allowed: 2 or more"),
        ("1:4:+0", "batch-size is 0; allowed"),
        ("1:4:-1", "is not a number or a range; allowed: 8, 1:64, 4:64:*2, 8:8192:+8"),
        ("1:2:3:4", "is not a number or a range"),
        ("a:b:c", "is not a number or a range"),
        ("1:", "is not a number or a range; allowed"),
        ("1-64", "'1-64' is not a number or a range; allowed: 8, 1:64, 4:64:*2"),
        ("[1,2]", "is not a number or a range"),
        ("1:1000000000", "has over 10,000,000 values"),
        ("1:10000000,1:10000000", "has over 10,000,000 values"),
    ],
)
def test_a_wrong_range_is_a_one_line_error(run: Run, text: str, message: str) -> None:
    refused(run(*SWEEP, f"--batch-size={text}"), message)


@pytest.mark.parametrize("form", ["csv", "json", "table"])
@pytest.mark.parametrize(
    "words",
    [
        ["--output-len", "1,2,10000000"],
        ["--batch-size", "1:2000", "--input-len", "1:2000", "--output-len", "1:2000"],
        ["--hardware", "a6000,no-such-chip"],
    ],
)
def test_a_sweep_that_is_too_large_is_rejected_at_the_start(run: Run, words: list[str], form: str) -> None:
    refused(run("sweep", "llama-2-7b", "--hardware", "a6000", "--format", form, *words), "")


def test_a_sweep_of_chunked_prompts_is_split_by_its_forward_passes(run: Run) -> None:
    words = ["--batch-size", "1:1000", "--input-len", "20000", "--max-num-batched-tokens", "32", "--output-len", "1"]
    status, out, _ = run(*SWEEP, *words)
    assert (status, len(out.splitlines())) == (0, 1001)


def test_a_sweep_warns_once_of_a_context_beyond_the_maximum(run: Run) -> None:
    status, out, err = run(*SWEEP, "--input-len", "1000,2000,5000", "--hardware", "a6000,h100")
    assert (status, len(out.splitlines())) == (0, 7)
    assert err == "warning: context 5128 is beyond the model's maximum of 4096 tokens\n"


def test_an_error_is_printed_without_warnings(run: Run) -> None:
    refused(run(*SWEEP, "--input-len", "5000", "-o", "missing/x.csv"), "cannot write 'missing/x.csv'")


@pytest.mark.parametrize(
    "model", ["llama-2-7b", "mamba-2.8b", "llama-4-scout", "deepseek-v2-lite", "gemma-3-1b", "dbrx"]
)
@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_extreme_but_allowed_sizes_are_answered(run: Run, model: str, attention: str) -> None:
    sizes = ["--batch-size", 10**9, "--input-len", 10**9, "--attention", attention]
    status, out, err = run("analyze", model, "--hardware", "a6000", *sizes, "--format", "json")
    assert (status, err) == (1, "")
    assert json.loads(out)["metrics"]["ttft_s"] > 0


def test_a_million_output_tokens_take_a_quarter_of_a_gigabyte() -> None:
    tracemalloc.start()
    try:
        analyze("llama-2-7b", "a6000", output_len=10**6).to_dict()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**28


# --- files -----------------------------------------------------------------------------------------------------------

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
#: name -> content, expected message.
FILES: dict[str, tuple[str | bytes, str]] = {
    "empty.json": ("", "is empty"),
    "blank.yaml": (" \n\n", "is empty"),
    "truncated.json": (json.dumps(LLAMA)[:100], "cannot be read as JSON: Expecting property name"),
    "list.json": ("[1, 2]", "holds a list; expected a mapping of fields"),
    "null.json": ("null", "holds null; expected a mapping"),
    "text.yaml": ("hello", "holds a text; expected a mapping"),
    "deep.json": ("[" * 100_000, "nested deeper than 100 levels"),
    "deep-object.json": ('{"a":' * 100_000, "nested deeper than 100 levels"),
    "deep.yaml": ("[" * 100_000, "nested deeper than 100 levels"),
    "deep-block.yaml": ("- " * 100_000, "nested deeper than 100 levels"),
    "deep-keys.yaml": ("? " * 100_000, "nested deeper than 100 levels"),
    "deep-field.json": (json.dumps(LLAMA)[:-1] + ', "x": ' + "[" * 200 + "]" * 200 + "}", "nested deeper"),
    "twice.json": (json.dumps(LLAMA)[:-1] + ', "hidden_size": 8}', "field 'hidden_size' appears 2 times"),
    "twice.yaml": ("model_type: llama\nmodel_type: gpt2\n", "line 1: field 'model_type' appears 2 times"),
    "laughs.yaml": (LAUGHS, "more than 1,000,000 values"),
    "merges.yaml": (MERGES, "more than 1,000,000 values"),
    "recursive.yaml": ("&a [*a]", "nested deeper"),
    "recursive-fields.yaml": ("&a\nmodel_type: *a\n", "nested deeper"),
    "python.yaml": ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
    "tab.yaml": ("a:\n\tb: 1\n", "line 2"),
    "two.yaml": ("a: 1\n---\nb: 2\n", "another document"),
    "control.yaml": ("a: \x07", "control characters are not allowed"),
    "number-key.yaml": ("1: 2\n", "key 1 is not text; put it in quotes"),
    "list-key.yaml": ("? [1]\n: 2\n", "unhashable key"),
    "set.yaml": ("model_type: !!set {a, b}\n", "a set is neither text, number, list nor mapping"),
    "digits.json": ('{"hidden_size": ' + "1" * 5000 + "}", "a number has thousands of digits"),
    "digits.yaml": ("hidden_size: " + "1" * 5000, "a number has thousands of digits"),
    "binary.json": (b"\xff\xfe\x00", "is not text (UTF-8)"),
    "large.json": (b" " * 5 * 2**20, "is larger than 4,096 KiB"),
    "large.yaml": (b" " * 2 * 2**20, "is larger than 512 KiB"),
    "many.json": ('{"x": [' + "1," * 1_100_000 + "1]}", "more than 1,000,000 values"),
    "nan.json": (json.dumps({**LLAMA, "hidden_size": float("nan")}), "field 'hidden_size' is nan, expected"),
    "escape.json": (json.dumps({**LLAMA, "a\x1b[31m\n": 1}), "field 'a?[31m?' is not supported"),
    "fields.json": (json.dumps({**LLAMA, **{f"x{i}": 1 for i in range(9)}}), "'x4', … are not supported"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_broken_file_is_a_one_line_error_for_models_and_chips(run: Run, name: str) -> None:
    content, message = FILES[name]
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(run("analyze", name, "--hardware", "a6000"), message)
    refused(run("models", "show", name), message)
    refused(run("analyze", "llama-2-7b", "--hardware", name), "")
    refused(run("hardware", "show", name), "")


def test_no_file_hangs_the_reader_or_runs_code(run: Run) -> None:
    Path("broken.json").symlink_to("nowhere")
    Path("loop.json").symlink_to("loop.json")
    os.mkfifo("pipe.json")
    Path("folder").mkdir()
    os.mkfifo("folder/config.json")
    Path("inside/config.json").mkdir(parents=True)
    refused(run("analyze", "broken.json", "--hardware", "a6000"), "No such file or directory")
    refused(run("analyze", "loop.json", "--hardware", "a6000"), "symbolic links")
    refused(run("analyze", "pipe.json", "--hardware", "a6000"), "is a device or a pipe")
    refused(run("analyze", "folder", "--hardware", "a6000"), "is a device or a pipe")
    refused(run("analyze", "inside", "--hardware", "a6000"), "is a directory; expected a file")
    refused(run("hardware", "show", "pipe.json"), "is a device or a pipe")


def test_byte_order_marks_dates_and_exponents_are_read() -> None:
    assert parsing.from_yaml("a: 2024-02-30\nb: 1e12\nc: &x [1]\nd: *x") == {
        "a": "2024-02-30",
        "b": 1e12,
        "c": [1],
        "d": [1],
    }


def test_a_config_with_a_byte_order_mark_is_read(run: Run) -> None:
    Path("marked.json").write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert run("models", "show", "marked.json")[0] == 0


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON_VALUES)
def test_json_values_round_trip_through_the_yaml_reader(value: object) -> None:
    text = json.dumps(value)
    assert parsing.from_json(text) == value


@given(st.text(alphabet='{}[]:,-?&*!<>|"# \n\tab1.0e', max_size=60))
def test_any_text_is_parsed_or_a_one_line_error(text: str) -> None:
    for read in (parsing.from_json, parsing.from_yaml):
        try:
            read(text)
        except ValueError as error:
            assert printable(error, 500).isprintable()


# --- output files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["mine/config.json", "link.json", "chip.yaml"])
@pytest.mark.parametrize("command", ["analyze", "compare", "sweep"])
def test_output_never_overwrites_an_input_file(run: Run, command: str, place: str) -> None:
    Path("mine").mkdir()
    Path("mine/config.json").write_text(json.dumps(LLAMA))
    Path("link.json").symlink_to("mine/config.json")
    Path("chip.yaml").write_text(json.dumps(H100))
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    refused(run(command, "mine", "--hardware", "chip.yaml", "-o", place), "refusing to overwrite the input file")
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "place", ["", ".", "missing/x", "file/x", "/proc/nothing", "~no-such-user/x", "x" * 300, "a\0b"]
)
@pytest.mark.parametrize(
    "words", [ANALYZE, SWEEP, [*SWEEP[:-1], "parquet"], ["hardware", "list"], ["models", "show", "gpt2"]]
)
def test_an_unwritable_path_is_a_one_line_error_and_leaves_no_file(run: Run, words: list[str], place: str) -> None:
    pytest.importorskip("pyarrow")
    Path("file").write_text("")
    refused(run(*words, "-o", place), "cannot write")
    assert os.listdir() == ["file"]  # noqa: PTH208


def test_an_unexpected_exception_is_one_line_and_status_70(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(words: list[str]) -> int:
        raise KeyError("unexpected\nerror")

    monkeypatch.setattr(cli, "main", broken)
    monkeypatch.delenv("LLMVIEWER_DEBUG", raising=False)
    with pytest.raises(SystemExit) as stop:
        cli.run(["analyze"])
    assert stop.value.code == 70
    assert capsys.readouterr().err.startswith("error: internal error in llmviewer, please report it: KeyError")
    monkeypatch.setenv("LLMVIEWER_DEBUG", "1")
    with pytest.raises(KeyError):
        cli.run(["analyze"])


# --- Python ----------------------------------------------------------------------------------------------------------

WRONG_SIZES = (
    "x", "4.5", b"4", [], [1, 0], [1, "x"], [None], [[1, 2], [3, 4]], [[1], [1, 2]], True, np.True_, [True, False],
    np.ones((2, 2)), np.array([]), np.array([np.nan]), np.array(["a"]), np.float32(3.5), -1, 0, 1.5, 10**30, 10**5000,
    float("nan"), float("inf"), None, {}, {1: 2}, {1}, iter([1]), 1j, object(), int, Path("x"), [10**30], "\ud800",
)  # fmt: skip


@pytest.mark.parametrize("value", WRONG_SIZES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ["batch_size", "input_len", "output_len"])
def test_sizes_of_a_wrong_type_are_a_one_line_error(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"^{name} is .*; allowed: ") as error:
        analyze("llama-2-7b", "a6000", **{name: value})
    one_line(error.value)


@pytest.mark.parametrize(
    "value", [3, np.int32(3), 3.0, np.float64(3), np.array(3), np.array([3]), [3], (3,), range(3, 4)]
)
def test_all_numeric_types_are_accepted(value: Any) -> None:
    assert analyze("llama-2-7b", "a6000", batch_size=value).to_dict()["workload"]["batch_size"] == 3


@pytest.mark.parametrize(
    "value",
    [[], {}, b"x", 1.5, True, object(), np.ones(2), "no-such-word", "", "\0", 10**5000],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    "name", ["dtype", "quantization", "kv_cache_dtype", "attention", "latent_attention", "efficiency", "no_such_option"]
)
def test_options_of_a_wrong_type_are_a_one_line_error(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=name.replace("kv_cache_dtype", "kv_cache_dtype|KV cache dtype")) as error:
        analyze("llama-2-7b", "a6000", **{name: value})
    one_line(error.value)


@pytest.mark.parametrize("value", [None, 5, [], {}, b"llama-2-7b", 1.5, object(), True])
def test_a_model_or_chip_of_a_wrong_type_is_a_one_line_error(value: Any) -> None:
    for model, chip, what in ((value, "a6000", "model"), ("llama-2-7b", value, "hardware")):
        with pytest.raises(UserError, match=f"^{what} is .*; expected a name, a path") as error:
            analyze(model, chip)
        one_line(error.value)


def test_path_objects_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "chip.yaml").write_text(json.dumps(H100))
    assert analyze(tmp_path, tmp_path / "chip.yaml").fits


def test_chip_and_request_arrays_of_different_lengths_are_a_one_line_error() -> None:
    from dataclasses import replace

    chip = specs.load("a6000")
    chips = replace(chip, bandwidth_bytes_per_s=chip.bandwidth_bytes_per_s * np.array([1.0, 2.0, 3.0]))
    with pytest.raises(UserError, match="the chip's figures have 3, the request 2"):
        analyze("llama-2-7b", chips, batch_size=[1, 2])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x", "'x'"), (None, "null"), (True, "true"), (3, "3"), (0.5, "0.5"), ([1], "a list"), ({}, "a mapping"),
        (np.ones(1), "an array"), (10**5000, "a number of thousands of digits"), ("a\nb\x1b", "'a?b?'"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_error_messages_quote_values_as_written(value: object, message: str) -> None:
    assert quoted(value) == message


def test_dataframe_columns_are_accepted_as_sizes() -> None:
    pd = pytest.importorskip("pandas")
    assert len(analyze("llama-2-7b", "a6000", batch_size=pd.Series([1, 2]))) == 2


def test_only_close_names_are_suggested() -> None:
    assert nearest("lama-2-7b", ["llama-2-7b", "gpt2"]) == "llama-2-7b"
    assert nearest("foo", ["olmoe", "gpt2"]) is None
    assert nearest("gpt-3", ["opt-30b", "gpt2"]) == "gpt2"  # both are alike, but one begins with its letter
    assert nearest("gpt-3", ["opt-30b"]) is None
    assert nearest("ppt-30b", ["opt-30b"]) == "opt-30b"
    assert nearest("x" * 10**6, ["olmoe"]) is None
    assert str(unknown("dtype", "bf61", ["bf16", "fp8"], where="mine", hint="more")) == (
        "mine: unknown dtype 'bf61'; allowed: bf16, fp8; did you mean 'bf16'? (more)"
    )


# --- terminal output -------------------------------------------------------------------------------------------------


def test_control_characters_in_names_do_not_reach_the_terminal(run: Run) -> None:
    hostile = "\x1b[2J\x07\n\r\x9bRED"
    Path("model.json").write_text(json.dumps({**LLAMA, "architectures": [hostile], "_name_or_path": hostile}))
    Path("chip.yaml").write_text(json.dumps({**H100, "name": hostile, "generation": hostile}))
    for words in (
        ["analyze", "model.json", "--hardware", "chip.yaml"],
        ["compare", "model.json", "--hardware", "chip.yaml"],
        ["models", "show", "model.json"],
        ["hardware", "show", "chip.yaml"],
    ):
        status, out, err = run(*words)
        assert (status, err) == (0, "")
        assert not {"\x1b", "\x07", "\r", "\x9b"} & set(out)


@pytest.mark.parametrize(
    "name", ["weight_scale_group_size", "org/task-specific-distilled-model", "disk-of-the-host-beside-it"]
)
def test_a_word_within_which_a_credential_would_begin_is_told(name: str) -> None:
    assert str(UserError(f"unknown '{name}'")) == f"unknown '{name}'"
    assert "AbCdEfGhIjKlMnOpQrSt" not in str(UserError(f"{name} is 'hf_AbCdEfGhIjKlMnOpQrSt'"))
