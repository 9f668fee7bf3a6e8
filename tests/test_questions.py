"""A question is declared once, and has every door or says why not."""

from __future__ import annotations

import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

import llmviewer as lv
from llmviewer.cli import COMMANDS, main
from llmviewer.cli.app import command_tree
from llmviewer.questions import ASSISTANT, DOORS, HTTP, QUESTIONS, WEB
from llmviewer.server import calls, tools
from llmviewer.techniques.options import OPTIONS

ROOT = Path(__file__).parents[1]
GENERATED = [name for name, one in QUESTIONS.items() if not one.command]
#: Shortest reason that says something.
MIN_WORDS = 5


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_has_every_door_or_its_declaration_says_why_not(name: str) -> None:
    pytest.importorskip("dash")
    from llmviewer.reports.web.tabs import TABS

    question = QUESTIONS[name]
    assert set(question.closed) <= {*DOORS}
    assert all(len(reason.split()) >= MIN_WORDS for reason in question.closed.values())
    assert name in COMMANDS and COMMANDS[name][1] == question.summary
    assert getattr(lv, name) is question.function() and name in lv.__all__
    assert question.answer.rpartition(".")[2] in lv.__all__
    assert (name in calls.CALLS) == question.has(HTTP)
    assert (name in tools.TOOLS) == question.has(ASSISTANT)
    assert ((question.tab or name) in TABS) == question.has(WEB)


def test_few_doors_are_closed() -> None:
    """Three doors each, beside Python and the command line."""
    closed = {(name, door) for name, one in QUESTIONS.items() for door in one.closed}
    assert closed == {("crossover", WEB), ("check", WEB), ("diagnose", WEB), ("diagnose", HTTP)}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_example_and_the_own_options_are_arguments_of_the_call(name: str) -> None:
    question = QUESTIONS[name]
    accepted = {*signature(question.function()).parameters}
    assert {*question.example} <= accepted
    assert {*question.options()} <= accepted


@pytest.mark.parametrize("name", GENERATED)
def test_a_command_made_from_a_declaration_takes_what_the_call_takes(name: str) -> None:
    accepted = {*signature(QUESTIONS[name].function()).parameters}
    taken = {one.name for one in command_tree(COMMANDS, name).commands[name].params}
    assert accepted <= taken
    assert taken - accepted - {*OPTIONS, "launch_line"} == {"format", "output"}


def test_fields_of_a_form_without_a_start_are_empty() -> None:
    pytest.importorskip("dash")
    from llmviewer.reports.web.questions import text_of
    from llmviewer.reports.web.state import OF_FORMS
    from llmviewer.reports.web.tabs.asked import fields_of
    from llmviewer.reports.web.view import view_of

    for name, question in OF_FORMS.items():
        view = view_of(f"tab={name}", "light")
        texts = {one.name: text_of(view, one) for one in fields_of(question)}
        assert {*texts} == {*question.options()} - {*OPTIONS}
        assert view.state.hardware not in texts.values()
    assert texts["optimizer"] == "adamw"


NEW = """
import json, shlex, sys
from llmviewer import questions
questions.QUESTIONS["ridge"] = questions.Question(
    name="ridge", summary="The intensity at which a chip is busy both ways.", title="Ridge",
    use="Where compute and memory take the same time. Use it for: which kernels are bound by what.",
    call="ridge.ridge", answer="ridge.Ridge", own="ridge.OWN", page="ridge.page", schema="llmviewer.ridge/1",
    example={"hardware": "h100-sxm"},
)
import llmviewer as lv
from llmviewer.cli import main
from llmviewer.reports.web.tabs import content
from llmviewer.reports.web.view import view_of
from llmviewer.server import calls, openapi, tools
given = {"hardware": "h100-sxm", "dtype": "fp8"}
value = lv.ridge(**given).to_dict()
assert json.loads(calls.answer("ridge", given)) == tools.TOOLS["ridge"].called(given) == value
assert "/api/v1/ridge" in openapi.document()["paths"]
assert main(shlex.split("ridge --hardware h100-sxm --dtype fp8")) == 0
view = view_of("model=llama-3.2-1b&hardware=h100-sxm&tab=ridge&run=ridge", "light")
assert "FLOP/byte" in str(content(view))
"""
RIDGE = """
from dataclasses import dataclass
from llmviewer.api.build import chip_of
from llmviewer.language.option import Kind, Option
from llmviewer.reports.page import Facts

OWN = {"dtype": Option(kind=Kind.WORD, help="Format of the matrices.")}

@dataclass
class Ridge:
    value: float
    def to_dict(self):
        return {"schema": "llmviewer.ridge/1", "ridge_flops_per_byte": self.value}
    def rows(self):
        return [self.to_dict()]

def ridge(model="", hardware="h100-sxm", *, dtype="bf16"):
    chip = chip_of(hardware)
    return Ridge(float(chip.matrix_flops_per_s[dtype] / chip.bandwidth_bytes_per_s))

def page(found):
    return (Facts(lines=(("Ridge", f"{found.value:.0f} FLOP/byte"),)),)
"""


def test_a_new_question_is_a_call_a_page_and_one_entry(tmp_path: Path) -> None:
    """It then has five doors."""
    pytest.importorskip("dash")
    (tmp_path / "ridge.py").write_text(RIDGE, encoding="utf-8")
    made = subprocess.run(
        [sys.executable, "-c", NEW], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "FLOP/byte" in made.stdout


@pytest.mark.parametrize("name", [name for name, one in QUESTIONS.items() if one.page])
def test_an_answer_prints_its_page_and_its_repr_is_a_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    question = QUESTIONS[name]
    words = {**question.example, **({"measured": "docs/profile.json.gz"} if name == "diagnose" else {})}
    found = getattr(lv, name)(**words)
    assert (found.QUESTION, f"{type(found).__module__}.{type(found).__name__}") == (name, question.answer)
    lines = str(found).splitlines()
    assert len(lines) > 1 and lines == [line.rstrip() for line in lines]
    assert "\n" not in repr(found) and len(repr(found)) < 120
    assert "<table" in found._repr_html_()


def test_print_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["elasticity", "llama-2-70b", "--hardware", "h100"]) == 0
    assert str(lv.elasticity("llama-2-70b", hardware="h100")).rstrip() == capsys.readouterr().out.rstrip()
    largest = lv.require("llama-3.1-8b", hardware="h100", vary="batch_size", tpot="20ms")
    assert str(largest).startswith("Verdict") and "\n" not in repr(largest)
