"""Every option of a call of Python acts, is refused, or is named in a note; HTTP and assistants make the same calls."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import cache
from inspect import Signature, signature
from typing import Any

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core import arguments
from llmviewer.language.option import Kind
from llmviewer.planning.options import SIZE
from llmviewer.questions import QUESTIONS, Question
from llmviewer.reports.plots.plot import VALUES, PlotOptions
from llmviewer.server import arguments as described
from llmviewer.server import calls, compact, tools
from llmviewer.simulation.options import LOAD as OF_A_LOAD
from llmviewer.simulation.options import SOURCES
from llmviewer.techniques.options import OPTIONS, with_bits
from tests.test_every_option import (
    LINES,
    NOT_TRIED,
    case_files,  # noqa: F401
    case_of,
    figures,
    folder_of_cases,  # noqa: F401
    line_of,
    notes,
    parameters,
)

#: Calls that are walked here, in the usual suite and beyond it.
QUICK, OTHERS = ("analyze", "train"), ("sweep", "compare", "crossover", "explain")
#: Call -> what its command calls, which is this very call, so that the walk of the command is one of the call.
OF_COMMANDS = {
    **{name: f"llmviewer.cli.{name}.{name}" for name in ("simulate", "size")},
    **dict.fromkeys(("advise", "elasticity", "fit", "require"), "llmviewer.questions.Question.function"),
    "diagnose": "llmviewer.calibrate.diagnosis.call.diagnose",
}
#: Calls without options of a run, and those whose runs are texts: test_every_option.py has them.
WITHOUT_OPTIONS = (
    "page",  # the answers of analyze, drawn
    "launch_line",
    "list_engines",
    "list_hardware",
    "list_models",
    "list_techniques",
    "check",
    "why",
    "plot",
)
RUN = {"model": "llama-3.2-1b", "hardware": "a100-80gb-sxm"}
#: Arguments that are the subject of a call.
SUBJECT = ("model", "hardware", "launch_line", "number", "measured", "a", "b", "contract", "advance", "best_so_far")
#: Call whose answer assistants read in short -> that answer.
SHORT = {"analyze": compact.analysis, "compare": compact.comparison}


def options_of(call: str) -> list[str]:
    """Names of all options that a call of Python takes."""
    found = signature(getattr(lv, call)).parameters
    return [name for name in found if name not in (*SUBJECT, *NOT_TRIED)]


PAIRS = [
    pytest.param(call, name, marks=[] if call in QUICK else [pytest.mark.slow], id=f"{call}-{name}")
    for call in (*QUICK, *OTHERS)
    for name in options_of(call)
]


def test_every_call_of_python_is_walked() -> None:
    public = {name for name in lv.__all__ if name[0].islower()}
    assert public == {*QUICK, *OTHERS, *OF_COMMANDS, *WITHOUT_OPTIONS}
    assert not [
        (call, name) for call in public - {*WITHOUT_OPTIONS} for name in options_of(call) if not case_of(call, name)
    ]


@pytest.mark.parametrize(("call", "name"), PAIRS)
def test_an_option_of_a_call_acts_or_is_refused_or_named(call: str, name: str) -> None:
    case = case_of(call, name)
    assert case is not None
    try:
        stated = answered(call, words_of(call, name, typed(call, name)))
    except lv.UserError as error:
        assert "--" not in str(error)
        assert "\n" not in str(error)
        return
    try:
        plain = answered(call, words_of(call, name, shlex.split(f"{case.beside} {case.without}")))
    except lv.UserError:
        return  # there is an answer with the option alone
    for one, other in zip(stated, plain, strict=True):
        spelled = OPTIONS[name].spellings(name) if name in OPTIONS else ("--" + name.replace("_", "-"),)
        assert one[0] != other[0] or any(word in one[1] for word in (spelled[0], f"{spelled[-1]}:")), one[1]


def typed(call: str, name: str) -> list[str]:
    """The option of a case with its value and those beside it, as typed."""
    case = case_of(call, name)
    assert case is not None
    spelled = OPTIONS[name].spellings(name)[0] if name in OPTIONS else f"--{name.replace('_', '-')}"
    words = [*shlex.split(case.beside), spelled, *filter(None, [case.value])]
    return [word.replace("TRACE", "trace.csv") for word in words]


def words_of(call: str, name: str, words: list[str]) -> str:
    """The arguments of the case of an option, as JSON."""
    run, beside, words = line_of(call, name, words)
    first = {"number": LINES[call][0]} if call == "explain" else {}
    chips = run[2].split(",") if call == "crossover" else run[2]
    return json.dumps({**first, "model": run[0], "hardware": chips, **values_of(call, [*beside, *words])})


def values_of(call: str, words: list[str]) -> dict[str, Any]:
    """Arguments of Python of options as typed: numbers for texts of numbers, True for a switch."""
    spelled = {spelling: name for name, one in OPTIONS.items() for spelling in one.spellings(name)}
    spelled |= {spelling: one.name for one in parameters(call) for spelling in one.opts}
    found: dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        name = spelled.get(word, word.removeprefix("--").replace("-", "_"))
        found[name] = True if is_switch(name) else value_of(call, name, left.pop(0))
    return found


def is_switch(name: str) -> bool:
    return (name in OPTIONS and OPTIONS[name].kind is Kind.SWITCH) or (
        name in OF_A_LOAD and OF_A_LOAD[name].kind is Kind.SWITCH
    )


def value_of(call: str, name: str, text: str) -> Any:
    """A typed value as callers of Python write it."""
    loads = {**OF_A_LOAD, **SIZE} if call in ("simulate", "size") else {}
    if name in loads:
        return text if loads[name].kind is Kind.TEXT else arguments.parse_number(text)
    if name in OPTIONS and OPTIONS[name].kind is Kind.WORDS:
        return [text]
    if name in OPTIONS and OPTIONS[name].kind is Kind.WORD:
        return text
    return arguments.parse_number(text)


@cache
def answered(call: str, words: str) -> list[tuple[list[Any], str]]:
    """Figures and notes of an answer, and of the same in short as assistants read it."""
    given = json.loads(words)
    made = getattr(lv, call)(**given)
    documents = [document(made), *([SHORT[call](made)] if call in SHORT else [])]
    return [(list(figures(one)), "\n".join(notes(one))) for one in documents]


def document(made: Any) -> Any:
    if isinstance(made, lv.Sweep):
        return {"warnings": list(made.check()), "rows": made.to_frame().to_dict("records")}
    return json.loads(json.dumps(made.to_dict()))


def recorded(*given: Any, **words: Any) -> None:
    """In place of a call of Python."""
    raise HandedOverError(given, words)


def signed(function: Callable[..., None], signature: Signature) -> Callable[..., None]:
    """A function in place of a call, with the call's arguments."""

    def made(*given: Any, **words: Any) -> None:
        function(*given, **words)

    made.__signature__ = signature  # type: ignore[attr-defined]
    return made


class HandedOverError(Exception):
    """The arguments that a call of Python would have had."""


#: Door -> its answer to a call with these arguments, and the calls that it has.
DOORS: dict[str, tuple[Callable[[str, Any], Any], list[str]]] = {
    "http": (calls.answer, list(calls.CALLS)),
    "assistants": (
        lambda call, given: tools.TOOLS[call].called(given),
        [name for name in tools.TOOLS if name in QUESTIONS],
    ),
}


@pytest.mark.parametrize(("door", "call"), [(door, call) for door, (_, made) in DOORS.items() for call in made])
def test_other_doors_hand_every_argument_to_the_call_of_python(
    door: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was given; one that is no part of a request from elsewhere, as the path of a file, is refused."""

    properties = described.schema(call)["properties"]  # from the functions themselves, and kept
    monkeypatch.setattr(Question, "function", lambda asked: recorded)
    example = dict(QUESTIONS[call].example)
    for name in properties:
        own = {} if name in SUBJECT else values_of(call, typed(call, name))
        given = {**example, **{one: value for one, value in own.items() if one in properties}}
        if ({*SOURCES} - {"request_rate"}) & {*given}:
            given.pop("request_rate", None)
        try:
            DOORS[door][0](call, given)
        except HandedOverError as handed:
            assert handed.args[1] == given
        except lv.UserError as error:
            assert name in described.OF_FILES, error
        else:
            pytest.fail("the call was not made")


@pytest.mark.parametrize("call", OF_COMMANDS)
def test_a_command_hands_every_option_to_the_call_of_python(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a caller of Python writes it, so that what an option does on the command line it does in the call."""
    names = options_of(call)
    made = signed(recorded, signature(getattr(lv, call)))
    whole = OF_COMMANDS[call].endswith(".function")
    monkeypatch.setattr(OF_COMMANDS[call], (lambda asked: made) if whole else recorded)
    for name in names:
        run, beside, words = line_of(call, name, typed(call, name))
        with pytest.raises(HandedOverError) as handed:
            main([call, *shlex.split(LINES[call][0]), *run, *beside, *words])
        subject, got = handed.value.args
        of_chip = "model" not in signature(getattr(lv, call)).parameters and got["hardware"] == run[-1]
        assert of_chip or subject[-2:] == (run[0], run[2]) or (got["model"], got["hardware"]) == (run[0], run[2])
        for one, value in with_bits(values_of(call, words)).items():
            listed = [value] if one == "price" else value  # both are for callers of Python
            assert as_text(got[one]) == as_text(listed), name


def as_text(value: Any) -> str:
    """A value or a list of them; "0.5" and 0.5 are one value to every call."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


#: Option of `plot` -> a kind that has it, a value, and one that is refused.
OF_PLOTS = {
    "metric": ("waterfall", "e2e_s", "speed"),
    "target_s": ("bandwidth", 0.004, "soon"),
    "over": ("figure", "bandwidth", "capacity"),
    "title": ("crossover", "Two chips", 3),
    "measured": ("roofline", pd.DataFrame({"stage": ["decode"], "name": ["q_proj"], "time_s": [1e-5]}), "timed.csv"),
    "theme": ("latency", "dark", "purple"),
    "style": ("latency", "slide", "poster"),
    "all_roofs": ("roofline", True, "yes"),
}


def test_every_option_of_plots_has_a_case() -> None:
    assert OF_PLOTS.keys() - VALUES.keys() == {"theme", "style"}
    assert VALUES.keys() < OF_PLOTS.keys()
    assert VALUES.keys() == PlotOptions.__annotations__.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_PLOTS)
def test_an_option_of_a_plot_changes_what_is_drawn_or_is_refused(name: str) -> None:
    kind, value, wrong = OF_PLOTS[name]
    run = ("llama-3.2-1b", "a100-80gb-sxm")
    data: Any = [lv.analyze(*run, set=text) for text in ("bandwidth=1TB/s", "bandwidth=2TB/s")]
    if kind == "crossover":
        data = lv.crossover(run[0], [run[1], "h100-sxm"], batch_size=[1, 2], context=[128, 256])
    elif kind == "roofline":
        data = data[:1]
    drawn = picture(lv.plot(kind, data, **{name: value}))
    with pytest.raises(lv.UserError, match=name.removesuffix("_s") if name != "over" else "figure that the points set"):
        lv.plot(kind, data, **{name: wrong})
    if name == "over":  # which has no default
        with pytest.raises(lv.UserError, match="plot figure needs over"):
            lv.plot(kind, data)
    else:
        assert drawn != picture(lv.plot(kind, data))


def picture(figure: Any) -> bytes:
    """The pixels of a figure."""
    FigureCanvasAgg(figure).draw()
    return bytes(figure.canvas.buffer_rgba())
