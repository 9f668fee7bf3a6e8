"""The question of a tab as a command and as a Python call, and files of its answer: the foot of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from shlex import join
from typing import Any

from llmviewer.api.trials import run_line
from llmviewer.core.errors import UserError
from llmviewer.planning.call import size
from llmviewer.reports.web import against
from llmviewer.reports.web.markup import piece
from llmviewer.reports.web.questions import is_asked
from llmviewer.reports.web.state import OF_FORMS
from llmviewer.reports.web.tabs import asked
from llmviewer.reports.web.tabs.compare import metric_of
from llmviewer.reports.web.tabs.explain import number_of
from llmviewer.reports.web.tabs.load import load_of
from llmviewer.reports.web.tabs.network import METRICS
from llmviewer.reports.web.tabs.size import chips_of, words_of
from llmviewer.reports.web.tabs.sweep import batches_of, inputs_of
from llmviewer.reports.web.view import View, view_of
from llmviewer.simulation.call import simulate
from llmviewer.techniques.options import OPTIONS

#: Name of the visitor's own model, in commands.
OWN = "config.json"


def equivalents(view: View) -> tuple[str, str]:
    """The command and the Python call of the open tab.  Raises UserError."""
    tab = view.state.tab
    of_tabs: Mapping[str, Callable[[], tuple[str, str]]] = {
        "size": lambda: _loaded(view, size, ",".join(chips_of(view)), words_of(view)),
        "load": lambda: _loaded(view, simulate, view.state.hardware, load_of(view)),
        "sweep": lambda: run_of(
            view, "sweep", "", {**view.options, "batch_size": batches_of(view), "input_len": inputs_of(view)}
        ),
        "explain": lambda: run_of(view, "explain", number_of(view), view.options),
    }
    if tab in OF_FORMS:
        return _loaded(view, OF_FORMS[tab].function(), view.state.hardware, asked.words_of(view))
    if tab == "compare" and view.state.others:
        return _compared(view_of(view.state.others[0], view.theme), view, metric_of(view))
    other = against.other(view) if tab == "network" else None
    if other is not None:
        return _compared(view, other, metric_of(other, METRICS[view.stage]))
    return of_tabs.get(tab, lambda: run_of(view, "analyze", "", view.options))()


def run_of(view: View, verb: str, first: str, words: Mapping[str, Any]) -> tuple[str, str]:
    """The command and the call of a run.  first: an argument before the model, or ""."""
    texts = {name: ",".join(map(str, value)) if isinstance(value, list) else value for name, value in words.items()}
    line = _line(view, view.state.hardware, texts)
    command = join(("llmviewer", verb, *([first] if first else []), *line))
    subject = f'"{first}", {_subject(view)}' if first else _subject(view)
    return command, f'lv.{verb}({subject}, "{view.state.hardware}"{_keywords(words)})'


def _line(view: View, hardware: str, words: Mapping[str, Any]) -> list[str]:
    subject = OWN if view.state.config else view.state.model
    return [word for one in run_line(subject, hardware, words, left_out={}).values() for word in one]


def _subject(view: View) -> str:
    return f'"{OWN}"' if view.state.config else f'"{view.state.model}"'


def _keywords(words: Mapping[str, Any]) -> str:
    """The words as keyword arguments, each after a comma."""
    return "".join(f", {name}={_literal(value)}" for name, value in words.items())


def _literal(value: Any) -> str:
    """A value as Python writes it; a whole number is one, though options take it as a text too."""
    whole = isinstance(value, str) and value.isdecimal() and str(int(value)) == value
    return value if whole else repr(value)


def _loaded(view: View, call: Callable[..., Any], hardware: str, words: Mapping[str, Any]) -> tuple[str, str]:
    """The command of a load, whose options are not those of a run alone."""
    verb = call.__name__
    run = {name: value for name, value in words.items() if name in OPTIONS}
    load = {name: value for name, value in words.items() if name not in OPTIONS}
    flags = [word for name, value in load.items() for word in ("--" + name.replace("_", "-"), str(value))]
    line, subject = _line(view, hardware, run), f"{_subject(view)}, "
    if not asked.is_of_a_model(call):
        line, subject = line[1:], ""
    command = join(("llmviewer", verb, *line, *flags))
    return command, f'lv.{verb}({subject}"{hardware}"{_keywords({**load, **run})})'


def _compared(first: View, last: View, metric: str) -> tuple[str, str]:
    """The command that splits the difference in a metric by factor, and the call."""
    sides = [join(_line(one, one.state.hardware, one.options)) for one in (first, last)]
    flags, keyword = ([], "") if metric == "tpot_s" else (["--metric", metric], f', metric="{metric}"')
    return join(("llmviewer", "why", *sides, *flags)), f"lv.why({sides[0]!r}, {sides[1]!r}{keyword})"


#: File of a run -> what it is.
FILES = {
    "report.html": "Report",
    "analysis.json": "JSON",
    "operators.csv": "Operators (CSV)",
    "sweep.csv": "Sweep (CSV)",
    "roofline.png": "Roofline (PNG)",
}
#: Tab whose answer is not that of a run -> the files of its answer.
OF_TABS: Mapping[str, Mapping[str, str]] = {
    "size": {"size.md": "Report (Markdown)", "size.json": "JSON", "size.csv": "Configurations (CSV)"},
    "load": {"simulation.md": "Report (Markdown)", "simulation.json": "JSON", "simulation.csv": "Requests (CSV)"},
    "explain": {"explanation.json": "JSON"},
    **{name: {f"{name}.md": "Report (Markdown)", f"{name}.json": "JSON", f"{name}.csv": "CSV"} for name in OF_FORMS},
}


def files_of(view: View) -> Mapping[str, str]:
    """Files of the answer of the open tab; none of a load before it is answered."""
    tab = view.state.tab
    if tab in ("size", "load", *OF_FORMS) and not is_asked(view):
        return {}
    if tab == "compare" and view.state.others:
        return {"why.json": "JSON"}
    return OF_TABS.get(tab, FILES)


def foot(view: View) -> str:
    """HTML of the command, the call and the downloads of a view; empty for fields that cannot be read."""
    try:
        return piece("foot", *equivalents(view), files_of(view), view.state.query())
    except UserError:  # the tab says so
        return ""
