"""Factors in which two runs differ (model, sizes, options, figures of the chip), and runs between the two.

A run between A and B takes some factors from B and the others from A.  Runs that differ only in figures of the chip are
evaluated together, as one chip whose figures are arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmviewer.api.configuration import Configuration, configuration
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.hypothetical import TIMES
from llmviewer.planning.run_metrics import RunMetric
from llmviewer.planning.why_chips import stacked, structure
from llmviewer.planning.why_figures import Chips, chips_of_two
from llmviewer.planning.why_line import Side, options_of
from llmviewer.result.result import Result
from llmviewer.techniques.options import OPTIONS, WORKLOAD

#: Options that say how a model is read; they go with it.
OF_MODEL = ("trace_model", "ignore_fields")
MODEL = "model"
#: Option whose figures and times are factors one by one.
SET = "set"
#: Factors with the value of B.
Taken = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One thing in which the runs differ, with the value of each run."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """Two runs.  chips: with the figures that the runs set.  configurations: those built, by what they depend on."""

    a: Side
    b: Side
    chips: Chips
    configurations: dict[Any, Configuration] = field(default_factory=dict)

    @property
    def factors(self) -> list[Factor]:
        """The model, sizes, options and groups of figures that differ."""
        a, b = self.a.words, self.b.words
        found = []
        if self.a.model != self.b.model or any(a[name] != b[name] for name in OF_MODEL):
            found.append(Factor(name=MODEL, a=_name(self.a.model), b=_name(self.b.model)))
        names = [name for name in OPTIONS if name not in (*OF_MODEL, SET) and a[name] != b[name]]
        found += [Factor(name=name, a=_told(a[name]), b=_told(b[name])) for name in names]
        for name in TIMES:
            times = [side.times.get(name, 1.0) for side in (self.a, self.b)]
            found += [Factor(name=name, a=times[0], b=times[1])] if times[0] != times[1] else []
        return found + [Factor(name=name, a=a, b=b) for name, (a, b) in self.chips.factors.items()]

    def result(self, taken: Taken) -> Result:
        """The result with some factors from B.  Raises UserError."""
        return self._configured([taken]).answer(self._request(taken))

    def values(self, wanted: Sequence[Taken], metric: RunMetric) -> Iterator[tuple[Taken, float | UserError]]:
        """The metric of each run between A and B, or the error of one that is impossible."""
        chips: dict[Any, list[Taken]] = {}
        for taken in wanted:
            key = (taken.difference(self.chips.stacked), structure(self._chip(taken)))
            chips.setdefault(key, []).append(taken)
        for together in chips.values():
            yield from self._together(together, metric)

    def _together(self, runs: list[Taken], metric: RunMetric) -> Iterator[tuple[Taken, float | UserError]]:
        """The metric of runs that differ only in figures of one structure."""
        try:
            made = self._configured(runs)
            if len(runs) > 1 and (made.most_points < len(runs) or made.system.spatial):
                for one in runs:
                    yield from self._together([one], metric)
                return
            result = made.answer(self._request(runs[0]))
            found = [metric.of(result, at if len(result) > 1 else 0) for at in range(len(runs))]
        except UserError as error:
            yield from ((one, error) for one in runs)
            return
        yield from zip(runs, found, strict=True)

    def _request(self, taken: Taken) -> Request:
        sizes = {name: (self.b if name in taken else self.a).request for name in WORKLOAD}
        return Request(**{name: getattr(request, name) for name, request in sizes.items()})

    def _configured(self, runs: Sequence[Taken]) -> Configuration:
        """The configuration of runs with the same model and options, on an array of their chips."""
        key = tuple(one.difference(WORKLOAD) for one in runs)
        if key not in self.configurations:
            taken, chips = runs[0], [self._chip(one) for one in runs]
            of_model = self.b if MODEL in taken else self.a
            words = {name: (self.b if name in taken else self.a).words[name] for name in OPTIONS}
            words |= {name: of_model.words[name] for name in OF_MODEL}
            words[SET] = self._times(taken)
            options = options_of(words)
            self.configurations[key] = configuration(of_model.model, stacked(chips), **options)
        return self.configurations[key]

    def _times(self, taken: Taken) -> str:
        """The text of `set` for launches and messages; the figures of the chip are its own."""
        stated = {name: (self.b if name in taken else self.a).times.get(name) for name in TIMES}
        factors = (f"{name}=x{factor!r}" for name, factor in stated.items() if factor is not None)
        return ",".join(factors) or str(OPTIONS[SET].default)

    def _chip(self, taken: Taken) -> Chip:
        return self.chips.between(taken)


def pair(a: Side, b: Side, chips: tuple[Chip, Chip]) -> Pair:
    """Two runs.  chips: of a and b, with the figures that they set."""
    named = [one.name for side in (a, b) for one in side.settings if one.name not in TIMES]
    return Pair(a=a, b=b, chips=chips_of_two(*chips, named))


def _told(value: Any) -> Any:
    """The value of an option, in words where the engine chooses it."""
    return "the engine's" if value is None else value


def _name(model: Any) -> str:
    return model if isinstance(model, str) else str(getattr(model, "name", "a config"))
