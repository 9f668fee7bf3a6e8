"""The answer to a state: its configuration, result and analysis object, and what the tabs read of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from llmviewer import api
from llmviewer.api.calls import request
from llmviewer.api.configuration import Configuration, configuration
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.reports.html import operators
from llmviewer.reports.html.operators import Line
from llmviewer.reports.report import Report
from llmviewer.reports.web.shown import Shown, one_stage, whole_request
from llmviewer.reports.web.state import State
from llmviewer.result.result import Result
from llmviewer.result.sweep import Grid, Sweep
from llmviewer.techniques.options import WORKLOAD

#: Stage that joins prefill and all decode steps.
REQUEST = "request"
#: Stages with their labels.
STAGES = {"prefill": "prefill", "decode": "decode", REQUEST: "whole request"}
#: Questions whose answers a process keeps.
MOST_KNOWN = 64


class Answer(dict[str, Any]):
    """An analysis object whose values are computed when they are first read.  parts: key -> function."""

    def __init__(self, parts: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__()
        self.parts = parts

    def __missing__(self, key: str) -> Any:
        self[key] = self.parts[key]()
        return self[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, computed as by an index; the default where the object has none."""
        return self[key] if key in self.parts else default


@dataclass(slots=True)
class _Known:
    """Result and analysis object of a question, once they are computed."""

    result: Result | None = None
    answer: dict[str, Any] | None = None


@lru_cache(maxsize=MOST_KNOWN)
def _known(model: str, config: str, hardware: str, words: tuple[tuple[str, str], ...]) -> _Known:
    return _Known()


@frozen(slots=False)
class View:
    """The answer to a state in a theme.  Everything is computed when a tab first reads it."""

    state: State
    theme: str = "light"

    @cached_property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the run, sizes included; an encoder writes nothing unless the state says otherwise."""
        stated = self.state.options()
        return {"output_len": 1, **stated} if self.configuration.model.is_encoder else stated

    @cached_property
    def configuration(self) -> Configuration:
        """The model on the system.  Raises UserError."""
        words = {name: value for name, value in self.state.options().items() if name not in WORKLOAD}
        return configuration(self.state.subject(), self.state.hardware, **words)

    @cached_property
    def _known(self) -> _Known:
        """Answers to this question that were computed before, for another tab or visitor."""
        state = self.state
        return _known(state.model, state.config, state.hardware, tuple(state.words.items()))

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
        """The result of the request.  Raises UserError."""
        known = self._known
        if known.result is None:
            known.result = self.configuration.answer(self.request)
        return known.result

    @cached_property
    def answer(self) -> dict[str, Any]:
        """The analysis object, with the name of its configuration, of which a tab computes what it reads."""
        known, result = self._known, self.result
        if known.answer is None:
            known.answer = Answer({"configuration": lambda: self.name, **result.parts()})
        return known.answer

    @cached_property
    def name(self) -> str:
        """Name of the configuration: model, chip, and the options that are stated."""
        words = (f"{name}={text}" for name, text in self.state.words.items() if name not in WORKLOAD)
        return ", ".join((self.configuration.model.name, self.configuration.chip.name, *words))

    @cached_property
    def title(self) -> str:
        """The question in a line: model, devices, sizes."""
        run, sizes = self.configuration, [f"{self.sizes[name]:,}" for name in WORKLOAD]
        hardware = f"{run.system.parallelism.devices} × {run.chip.name}"
        return f"{run.model.name} on {hardware}, batch {sizes[0]}, {sizes[1]} + {sizes[2]} tokens"

    @cached_property
    def lines(self) -> list[Line]:
        """Operators of both stages."""
        return operators.lines([self.answer])

    @cached_property
    def stage(self) -> str:
        """The stage that is shown: decode unless the state says otherwise or nothing is decoded."""
        wanted = self.state.shown["stage"]
        return wanted if wanted in self.stages else "prefill"

    @cached_property
    def stages(self) -> tuple[str, ...]:
        """Stages that can be shown, the whole request among them where it has two."""
        found = tuple(dict.fromkeys(line.stage for line in self.lines))
        return (*found, REQUEST) if len(found) > 1 else found

    @cached_property
    def shown(self) -> Shown:
        """Operators and times that are shown of the stage, or of the whole request."""
        make = whole_request if self.stage == REQUEST else one_stage
        return make(self.lines, self.result, self.answer, self.stage)

    @cached_property
    def unfolded(self) -> str:
        """The block that is unfolded: the one that the state names, or the one that takes most time."""
        found, chosen = self.shown, self.state.shown["block"]
        return chosen if chosen in found.blocks else max(found.blocks, key=found.seconds)


def view_of(query: str, theme: str) -> View:
    """The view of another configuration by its query."""
    from llmviewer.reports.web.state import parsed

    return View(state=parsed(query), theme=theme)


def points(view: View, batches: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> dict[str, list[Any]]:
    """Columns of all combinations of sizes, with the name of the configuration.  Raises UserError."""
    grid = Grid(batch_sizes=_sizes(batches), input_lens=_sizes(inputs), output_lens=_sizes(outputs))
    found: dict[str, list[Any]] = {}
    for columns in Sweep(configurations=(view.configuration,), grid=grid).chunks(lambda _: None):
        for name, values in columns.items():
            found.setdefault(name, []).extend(values.tolist())
    return {"configuration": [view.name] * len(grid), **found}


def memory_points(view: View, batches: Sequence[int], inputs: Sequence[int]) -> dict[str, list[Any]]:
    """Columns of memory of all combinations of these sizes with the output length asked.  Raises UserError."""
    if view.configuration.most_points == 1.0:
        return points(view, batches, inputs, [view.sizes["output_len"]])
    grid = Grid(batch_sizes=_sizes(batches), input_lens=_sizes(inputs), output_lens=_sizes([view.sizes["output_len"]]))
    asked = grid.points(0, len(grid))
    columns = {**{name: getattr(asked, name) for name in WORKLOAD}, **view.configuration.memory_columns(asked)}
    texts = {"configuration": view.name, "hardware": view.configuration.chip.name}
    return {
        **{name: [text] * len(grid) for name, text in texts.items()},
        **{name: values.tolist() for name, values in columns.items()},
    }


def _sizes(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.unique(np.asarray(values, dtype=np.float64))


def report(view: View, columns: dict[str, list[Any]]) -> Report:
    """The report of a view with points, which curves read."""
    return Report(results={view.name: view.result}, points=columns)


#: Names that controls offer.
NAMES = {"model": api.list_models, "hardware": api.list_hardware, "engine": api.list_engines}
