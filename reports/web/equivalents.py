"""The question of a tab as a command and as a Python call, and files of its answer: the foot of the page."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import join
from typing import Any

from llmviewer.api.trials import run_line
from llmviewer.reports.web.markup import piece
from llmviewer.reports.web.tabs.explain import number_of
from llmviewer.reports.web.tabs.load import load_of
from llmviewer.reports.web.tabs.size import chips_of, words_of
from llmviewer.reports.web.tabs.sweep import batches_of, inputs_of
from llmviewer.reports.web.view import View, view_of
from llmviewer.techniques.options import OPTIONS, ValueKind

#: Name of the visitor's own model, in commands.
OWN = "config.json"


def equivalents(view: View) -> tuple[str, str]:
    """The command and the Python call of the open tab.  Raises UserError."""
    tab = view.state.tab
    if tab == "size":
        return _loaded(view, "size", ",".join(chips_of(view)), words_of(view))
    if tab == "load":
        return _loaded(view, "simulate", view.state.hardware, load_of(view))
    if tab == "sweep":
        lists = {**view.options, "batch_size": batches_of(view), "input_len": inputs_of(view)}
        return run_of(view, "sweep", "", lists)
    if tab == "explain":
        return run_of(view, "explain", number_of(view), view.options)
    if tab == "compare" and view.state.others:
        return _compared(view_of(view.state.others[0], view.theme), view)
    return run_of(view, "analyze", "", view.options)


def run_of(view: View, verb: str, first: str, words: Mapping[str, Any]) -> tuple[str, str]:
    """The command and the call of a run.  first: an argument before the model, or ""."""
    texts = {name: ",".join(map(str, value)) if isinstance(value, list) else value for name, value in words.items()}
    line = _line(view, view.state.hardware, texts)
    command = join(("llmviewer", verb, *([first] if first else []), *line))
    subject = f'"{first}", {_subject(view)}' if first else _subject(view)
    return command, f'lv.{verb}({subject}, "{view.state.hardware}"{_keywords(words)})'


def _line(view: View, hardware: str, words: Mapping[str, Any]) -> list[str]:
    subject = OWN if view.state.config else view.state.model
    return [word for one in run_line(subject, hardware, words).values() for word in one]


def _subject(view: View) -> str:
    return f'"{OWN}"' if view.state.config else f'"{view.state.model}"'


def _keywords(words: Mapping[str, Any]) -> str:
    return "".join(f", {name}={value!r}" for name, value in words.items() if not _is_default(name, value))


def _is_default(name: str, value: Any) -> bool:
    declared = OPTIONS.get(name)
    return declared is not None and value == declared.default and declared.kind is not ValueKind.SWITCH


def _loaded(view: View, verb: str, hardware: str, words: Mapping[str, Any]) -> tuple[str, str]:
    """The command of a load, whose options are not those of a run alone."""
    run = {name: value for name, value in words.items() if name in OPTIONS}
    load = {name: value for name, value in words.items() if name not in OPTIONS}
    flags = [word for name, value in load.items() for word in ("--" + name.replace("_", "-"), str(value))]
    command = join(("llmviewer", verb, *_line(view, hardware, run), *flags))
    return command, f'lv.{verb}({_subject(view)}, "{hardware}"{_keywords({**load, **run})})'


def _compared(first: View, last: View) -> tuple[str, str]:
    """The command that splits the difference by factor."""
    sides = [join(_line(one, one.state.hardware, one.options)) for one in (first, last)]
    return join(("llmviewer", "why", *sides)), f"lv.why({sides[0]!r}, {sides[1]!r})"


#: File -> what it is.
FILES = {
    "report.html": "Report",
    "analysis.json": "JSON",
    "operators.csv": "Operators (CSV)",
    "sweep.csv": "Sweep (CSV)",
    "roofline.png": "Roofline (PNG)",
}


def foot(view: View) -> str:
    """HTML of the command, the call and the downloads of a view.  Raises UserError."""
    return piece("foot", *equivalents(view), FILES, view.state.query())
