"""Every option is declared once; the command line, the Python signature and the documentation agree with it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import typer

import llmviewer as lv
from llmviewer.api.build import OF_ENGINE
from llmviewer.cli import analyze as command
from llmviewer.techniques.options import OPTIONS, WORKLOAD, Options, with_bits
from llmviewer.techniques.registry import TECHNIQUES
from tests.answers import refusal

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "reference" / "options.md").read_text(encoding="utf-8")
#: `analyze` is calibrated by default, configurations are not.
OWN_DEFAULTS = {"efficiency": "calibrated"}


@pytest.fixture(scope="module")
def parameters() -> dict[str, Any]:
    """The command's parameters as typer reads them."""
    app = typer.Typer()
    app.command()(command.command)
    found: Any = typer.main.get_command(app)
    return {parameter.name: parameter for parameter in found.params}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_command_line_has_every_declared_option(name: str, parameters: dict[str, Any]) -> None:
    option, declaration = parameters[name], OPTIONS[name]
    assert option.help == declaration.help
    own = None if declaration.default == () or declaration.repeated else declaration.default
    assert option.default == OWN_DEFAULTS.get(name, own)
    assert set(declaration.spellings(name)) == set(option.opts)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_python_signature_has_every_option_with_its_default(name: str) -> None:
    parameter = inspect.signature(lv.analyze).parameters[name]
    assert parameter.default == OWN_DEFAULTS.get(name, OPTIONS[name].default)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_options_page_lists_every_option(name: str) -> None:
    declaration = OPTIONS[name]
    spelled = ", ".join(f"`{spelling}`" for spelling in declaration.spellings(name))
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {spelled} |"))
    assert f"| {declaration.panel.value} | {declaration.kind.metavar} |" in row
    assert declaration.help.replace("|", "\\|") in row


def test_every_technique_has_an_option_and_every_option_a_group() -> None:
    assert {name for name, one in OPTIONS.items() if one.group == "technique"} == set(TECHNIQUES)
    assert {name for name, one in OPTIONS.items() if one.array} == set(WORKLOAD)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--max-num-batched-tokens", "-1"], "--max-num-batched-tokens is -1; allowed: whole numbers from 0"),
        (["--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization is 1.5; allowed: above 0, at most 1"),
        (["--efficiency", "perfect"], "unknown efficiency 'perfect'; allowed: calibrated, ideal"),
        (["--batch-size", "0"], "--batch-size is 0; allowed: whole numbers from 1"),
    ],
)
def test_an_out_of_range_value_gives_the_same_error_everywhere(
    words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(["analyze", "llama-2-7b", "--hardware", "a6000", *words], capsys)
    assert error in line
    name = words[0].lstrip("-").replace("-", "_")
    value: Any = words[1] if name == "efficiency" else float(words[1])
    with pytest.raises(lv.UserError) as raised:
        lv.analyze("llama-2-7b", "a6000", **{name: value})
    assert str(raised.value).replace(name, words[0]).replace(f"unknown {words[0]}", f"unknown {name}") in line


@pytest.mark.parametrize("efficiency", ["ideal", "calibrated"])
@pytest.mark.parametrize("value", [5, ["a"], b"a", True])  # None is a value that is not given
def test_a_profile_that_is_no_text_is_named(value: Any, efficiency: str) -> None:
    with pytest.raises(lv.UserError, match=r"^profile is .*; expected a string"):
        lv.analyze("llama-2-7b", "a6000", profile=value, efficiency=efficiency)


def test_an_engine_needs_calibrated_times() -> None:
    with pytest.raises(lv.UserError, match="it needs efficiency calibrated, not ideal"):
        Options(engine="vllm", efficiency="ideal")


@pytest.mark.parametrize("model", ["gpt-oss-20b", "deepseek-v3", "llama-3.1-8b"])
def test_stated_defaults_change_nothing(model: str) -> None:
    """A stated default is a value like any other; what an engine chooses, it chooses only where nothing is stated."""
    stated = {name: option.default for name, option in TECHNIQUES.items() if name not in OF_ENGINE}
    for engine in ("kernels", "vllm", "sglang", "trtllm"):
        answers = [
            lv.analyze(model, "h200", engine=engine, batch_size=8, tensor_parallel_size=8, **options).to_json()
            for options in ({}, {k: v for k, v in stated.items() if k != "tensor_parallel_size"})
        ]
        assert answers[0] == answers[1], engine


@pytest.mark.parametrize(
    ("engine", "option", "value"), [("vllm", "fusion", "none"), ("llama.cpp==b6000", "attention", "flash")]
)
def test_a_stated_default_is_stated(engine: str, option: str, value: str) -> None:
    """The engine's own choice differs from the option's default, which is the value that is stated here."""
    times = [lv.analyze("llama-3.1-8b", "rtx-4090", engine=engine, **given).to_dict()["metrics"]["tpot_s"]
             for given in ({}, {option: None}, {option: value})]  # fmt: skip
    assert times[0] == times[1] != times[2]


@pytest.mark.parametrize(
    ("bits", "formats"),
    [
        ({"weight_bits": 4}, {"quantization": "w4a16"}),
        ({"weight_bits": "8", "activation_bits": 8}, {"quantization": "w8a8"}),
        ({"activation_bits": 16, "weight_bits": 16}, {"quantization": "none"}),
        ({"kv_bits": 4}, {"kv_cache_dtype": "kv4"}),
        ({"kv_bits": 16.0}, {"kv_cache_dtype": "auto"}),
        ({"weight_bits": None, "tensor_parallel_size": 2}, {"tensor_parallel_size": 2}),
    ],
)
def test_numbers_of_bits_stand_for_formats(bits: dict[str, Any], formats: dict[str, Any]) -> None:
    assert with_bits(bits) == formats
    one, other = (lv.analyze("llama-3.2-1b", "a100", **words) for words in (bits, formats))  # type: ignore[arg-type]
    assert one.to_dict() == other.to_dict()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"weight_bits": 4, "quantization": "fp8"}, "weight_bits and quantization fp8 state the same"),
        ({"kv_bits": 4, "kv_cache_dtype": "fp8"}, "kv_bits and kv_cache_dtype fp8 state the same"),
        ({"weight_bits": 0}, "weight_bits is 0; allowed: whole numbers from 1 to 16"),
        ({"activation_bits": "w8"}, "activation_bits is 'w8'"),
    ],
)
def test_wrong_bits_and_a_format_beside_them_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(lv.UserError, match=message):
        lv.analyze("llama-3.2-1b", "a100", **words)
