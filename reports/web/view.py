"""The answer to a state: its configuration, result and analysis object, and what the tabs read of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llmviewer import api
from llmviewer.api.calls import request
from llmviewer.api.configuration import Configuration, configuration
from llmviewer.core.workload import Request
from llmviewer.reports.html import operators
from llmviewer.reports.html.operators import Line
from llmviewer.reports.web.state import State
from llmviewer.result.result import Result
from llmviewer.techniques.options import WORKLOAD


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


def view_of(query: str, theme: str) -> View:
    """The view of another configuration by its query."""
    from llmviewer.reports.web.state import parsed

    return View(state=parsed(query), theme=theme)


#: Names that controls offer.
NAMES = {"model": api.list_models, "hardware": api.list_hardware, "engine": api.list_engines}
