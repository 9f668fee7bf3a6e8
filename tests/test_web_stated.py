"""The web viewer states what its address states: a value equal to an option's default is not an unset one."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape
from inspect import signature
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.api.build import OF_ENGINE
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.language.option import Kind
from llmviewer.techniques.options import OPTIONS, WORKLOAD

pytest.importorskip("dash", reason="needs dash: pip install '.[web]'")

from llmviewer.reports.web.app import _answer
from llmviewer.reports.web.controls import controls
from llmviewer.reports.web.equivalents import equivalents
from llmviewer.reports.web.state import LOCAL, OF_FORMS, State, default_text, parsed
from llmviewer.reports.web.tabs import TABS, content
from llmviewer.reports.web.tabs.load import load_of
from llmviewer.reports.web.tabs.size import words_of
from llmviewer.reports.web.view import View

NAMES = [name for name in OPTIONS if name not in LOCAL]
#: Options with a default that an address can state.
STATED = [name for name in NAMES if default_text(name)]
#: Defaults beside engines that choose other kernels where none are stated.
CHOSEN = [("fusion", "none", "vllm"), ("fusion", "none", "trtllm"), ("attention", "flash", "llama.cpp==b6000")]


def viewed(query: str) -> View:
    return View(state=parsed(query))


@pytest.mark.parametrize("name", NAMES)
def test_every_option_that_is_stated_is_in_the_address(name: str) -> None:
    state = parsed(f"{name}=word")
    assert state.words == {name: "word"}
    assert parsed(state.query()) == state


@pytest.mark.parametrize("name", NAMES)
def test_an_option_without_a_text_is_not_set(name: str) -> None:
    assert parsed(f"{name}=") == parsed("")
    assert name not in viewed("").options


@pytest.mark.parametrize("name", STATED)
def test_a_default_that_is_stated_is_passed_on(name: str) -> None:
    """To the call of every tab, to the address of every link, to the command and to the call at the foot."""
    view = viewed(f"{name}={default_text(name)}")
    assert view.state != parsed("")
    assert parsed(view.state.query()) == view.state
    assert str(view.options[name]).lower() == default_text(name)
    assert (name in words_of(view), name in load_of(view)) == (name != "batch_size",) * 2
    assert f"{name}={default_text(name)}" in unescape(_answer(view.state.query(), "light")[0])
    for tab in TABS:
        command, call = equivalents(View(state=view.state.showing(tab=tab)))
        if name == "batch_size" and tab in ("size", "load"):  # arrivals make the batches
            continue
        if tab in OF_FORMS and name not in signature(OF_FORMS[tab].function()).parameters:  # its form says so
            continue
        assert f"{name}=" in call, tab
        if OPTIONS[name].kind is not Kind.SWITCH:  # whose flag cannot be false
            assert set(OPTIONS[name].spellings(name)) & set(shlex.split(command)), tab


@pytest.mark.parametrize("tab", TABS)
def test_what_is_not_set_is_not_passed_on(tab: str) -> None:
    command, call = equivalents(viewed(f"tab={tab}"))
    own = ("batch_size", "input_len") if tab == "sweep" else ()
    assert [name for name in NAMES if f" {name}=" in call and name not in own] == []
    flags = {flag for name in NAMES if name not in own for flag in OPTIONS[name].spellings(name)}
    assert flags & set(shlex.split(command)) == set()


@pytest.mark.parametrize("name", STATED)
def test_a_control_shows_whether_its_option_is_set(name: str) -> None:
    shown = [_control(parsed(query), name) for query in ("", f"{name}={default_text(name)}")]
    if "<select" in shown[0]:
        assert [re.findall(r'<option value="([^"]*)" selected', one) for one in shown] == [[], [default_text(name)]]
        assert all(re.search(r'<option value="">not set: [^<]+</option>', one) for one in shown)
    else:
        assert [re.findall(r' value="([^"]*)" placeholder="not set: ', one) for one in shown] == [
            [""],
            [default_text(name)],
        ]


def _control(state: State, name: str) -> str:
    """HTML of the field or menu of an option."""
    menu, field = rf'<select data-option="{name}".*?</select>', rf'<input type="text" data-option="{name}".*?>'
    (found,) = re.findall(f"{menu}|{field}", controls(state, {}, ""))
    return str(found)


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """The JSON and the messages of a command."""
    main(["analyze", "llama-3.1-8b", "--hardware", "h100-sxm", *words, "--format", "json"])
    shown = capsys.readouterr()
    return json.loads(shown.out or "{}"), shown.err


@pytest.mark.parametrize(("name", "text", "engine"), CHOSEN)
def test_a_kernel_that_is_stated_beside_an_engine_is_that_of_the_command(
    name: str, text: str, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures, warnings and the bytes of every operator; without it the engine's own kernels take another time."""
    assert name in OF_ENGINE and text == default_text(name)
    stated, unset = viewed(f"{name}={text}&engine={engine}"), viewed(f"engine={engine}")
    found, _ = told([f"--{name}", text, "--engine", engine], capsys)
    assert json.loads(json.dumps(stated.result.to_dict())) == found
    assert stated.result.to_dict()["metrics"] != unset.result.to_dict()["metrics"]
    assert unset.result.to_dict() == lv.analyze("llama-3.1-8b", "h100-sxm", engine=engine).to_dict()


@pytest.mark.parametrize(
    "words",
    [
        {"engine": "vllm", "efficiency": "ideal"},
        {"expert_parallel_size": "1", "link": "pcie"},
        {"fusion": "none", "engine": "vllm", "network": "infiniband-ndr"},
        {"engine": "llama.cpp", "prefix_cache": "0.5,cascade"},
        {"engine": "llama.cpp", "prefix_cache": "0.5,cascade", "attention": "flash"},
    ],
)
def test_refusals_and_notes_are_those_of_the_command(words: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    query = "&".join(f"{name}={text}" for name, text in words.items())
    _, alert, *_ = _answer(f"?{query}", "light")
    flags = [word for name, text in words.items() for word in ("--" + name.replace("_", "-"), text)]
    found, messages = told(flags, capsys)
    lines = [unescape(one) for one in re.findall(r'role="alert">(.*?)</p>', alert)]
    if found:
        assert lines == found["warnings"]
    else:
        assert messages.count("\n") == 1
        with pytest.raises(UserError) as refused:
            lv.analyze("llama-3.1-8b", "h100-sxm", **words)
        assert lines == [str(refused.value)]


def test_a_batching_that_is_stated_is_refused_where_the_command_refuses_it() -> None:
    """static is the default of a run, and no batching of a simulation, which batches continuously unless told."""
    *_, alert = content(viewed("tab=load&run=load&batching=static&request_rate=4"))
    with pytest.raises(UserError) as refused:
        lv.simulate("llama-3.1-8b", "h100-sxm", request_rate=4, batching="static")
    assert unescape(alert["html"]).count(str(refused.value)) == 1


def test_sizes_that_are_stated_are_those_that_are_not() -> None:
    stated = viewed("&".join(f"{name}={one.default}" for name, one in WORKLOAD.items()))
    assert stated.options == {name: one.default for name, one in WORKLOAD.items()}
    assert stated.result.to_dict() == viewed("").result.to_dict()
