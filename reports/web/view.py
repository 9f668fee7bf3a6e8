"""The answer to a state: its configuration, result and analysis object, and what the tabs read of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llmviewer import api
from llmviewer.api.calls import request
from llmviewer.api.configuration import Configuration, configuration
from llmviewer.api.trials import run_line
from llmviewer.core.workload import Request
from llmviewer.reports.html import operators
from llmviewer.reports.html.operators import Line
from llmviewer.reports.web.state import State
from llmviewer.result.result import Result
from llmviewer.techniques.options import OPTIONS, WORKLOAD, ValueKind

#: Name of the visitor's own model, in lines and commands.
OWN = "config.json"


@dataclass(frozen=True, kw_only=True)
class View:
    """The answer to a state in a theme.  Everything is computed when a tab first reads it."""

    state: State
    theme: str = "light"

    @cached_property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the run, sizes included."""
        return self.state.options()

    @cached_property
    def configuration(self) -> Configuration:
        """The model on the system.  Raises UserError."""
        words = {name: value for name, value in self.options.items() if name not in WORKLOAD}
        return configuration(self.state.subject(), self.state.hardware, **words)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Batch size and lengths."""
        return {name: self.options.get(name, one.default) for name, one in WORKLOAD.items()}

    @cached_property
    def request(self) -> Request:
        """The request.  Raises UserError."""
        return request(**self.sizes)

    @cached_property
    def result(self) -> Result:
        """The result of the request."""
        return self.configuration.answer(self.request)

    @cached_property
    def answer(self) -> dict[str, Any]:
        """The analysis object, with the name of its configuration."""
        return {"configuration": self.name, **self.result.to_dict()}

    @cached_property
    def name(self) -> str:
        """Name of the configuration: model, chip, and the options that are not at their defaults."""
        words = (f"{name}={text}" for name, text in self.state.words.items() if name not in WORKLOAD)
        return ", ".join((self.configuration.model.name, self.configuration.chip.name, *words))

    @cached_property
    def lines(self) -> list[Line]:
        """Operators of both stages."""
        return operators.lines([self.answer])

    @property
    def stage(self) -> str:
        """The stage that is shown: decode unless the state says otherwise or nothing is decoded."""
        wanted = self.state.shown["stage"]
        return wanted if any(line.stage == wanted for line in self.lines) else "prefill"

    @cached_property
    def command(self) -> str:
        """The same question on the command line."""
        words = run_line(self._subject, self.state.hardware, self.options)
        return " ".join(("llmviewer analyze", *(_quoted(word) for one in words.values() for word in one)))

    @cached_property
    def call(self) -> str:
        """The same question in Python."""
        subject = f'json.load(open("{OWN}"))' if self.state.config else f'"{self.state.model}"'
        words = "".join(f", {name}={value!r}" for name, value in self.options.items() if not _is_default(name, value))
        return f'lv.analyze({subject}, "{self.state.hardware}"{words})'

    @property
    def _subject(self) -> str:
        return OWN if self.state.config else self.state.model


def view_of(query: str, theme: str) -> View:
    """The view of another configuration by its query."""
    from llmviewer.reports.web.state import parsed

    return View(state=parsed(query), theme=theme)


def _is_default(name: str, value: Any) -> bool:
    return bool(value == OPTIONS[name].default) and OPTIONS[name].kind is not ValueKind.SWITCH


def _quoted(word: str) -> str:
    from shlex import quote

    return quote(word)


#: Names that controls offer.
NAMES = {"model": api.list_models, "hardware": api.list_hardware, "engine": api.list_engines}
