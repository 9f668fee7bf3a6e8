"""Every technique of the registry is documented, and its example runs and changes the result."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from llmviewer.api.build import OF_ENGINE
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.techniques.methods import METHODS
from llmviewer.techniques.options import OPTIONS
from llmviewer.techniques.registry import TECHNIQUES, WITHOUT_OPTION, load
from llmviewer.techniques.technique import Technique

DOCS = Path(__file__).resolve().parent.parent / "docs" / "reference" / "techniques.md"
FIELDS = ("kind", "summary", "formula", "source", "example")


@pytest.fixture(params=TECHNIQUES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def output(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main([*words, "--format", "json"]) in (0, 1)
    return capsys.readouterr().out


def test_an_entry_has_summary_formula_and_source(name: str) -> None:
    technique = load(name)
    assert isinstance(technique, Technique)
    assert all(getattr(technique, field) for field in FIELDS)
    assert "arXiv" in technique.source or "http" in technique.source


def test_the_example_uses_the_technique_and_changes_the_result(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(load(name).example)[1:]
    flags = set(OPTIONS[name].spellings(name))
    assert flags & set(words), "the example must use the option"
    at = next(i for i, word in enumerate(words) if word in flags)
    without = [*words[:at], *words[at + 2 :]]
    off = TECHNIQUES[name].off
    if TECHNIQUES[name].default != off:
        without += ["--" + name.replace("_", "-"), off]
    requested = output(words, capsys)
    assert main([*without, "--format", "json"]) in (0, 1, 2)  # 2: only possible with the technique
    assert requested != capsys.readouterr().out


def test_a_disabled_technique_changes_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = "analyze llama-2-7b --hardware a6000 --input-len 64 --output-len 4".split()
    option = TECHNIQUES[name]
    plain = [*words, "--attention", "eager"] if name == "attention" else words
    flag = "--" + name.replace("_", "-")
    off, unset = (json.loads(output(line, capsys)) for line in ([*words, flag, option.off], plain))
    if name in OF_ENGINE and plain == words:  # stated, it takes the place of the engine's own
        assert off.pop("served") != unset.pop("served")
    assert off == unset


def test_every_technique_has_a_section_in_the_docs(name: str) -> None:
    assert f"## {name.replace('_', ' ')}\n" in DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize("other", WITHOUT_OPTION)
def test_a_technique_without_an_option_is_documented_and_its_example_runs(
    other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    test_an_entry_has_summary_formula_and_source(other)
    test_every_technique_has_a_section_in_the_docs(other)
    assert other not in TECHNIQUES and output(shlex.split(load(other).example)[1:], capsys)
    assert main(["techniques", "list"]) == 0
    assert f"\n{other} " in capsys.readouterr().out


@pytest.mark.parametrize("method", [m for methods in METHODS.values() for m in methods])
def test_the_registry_names_every_parameter_of_a_method_and_no_other(method: str) -> None:
    with pytest.raises(UserError) as error:
        load(method).make("no_such_parameter=1")
    _, listed, names = str(error.value).partition("allowed: ")
    assert set(load(method).parameters) == set(names.split(", ") if listed else ())


def test_the_list_contains_sentences_without_option_syntax() -> None:
    for name in (*TECHNIQUES, *WITHOUT_OPTION):
        assert "[," not in load(name).summary and len(load(name).summary) <= 170, name
