"""Factors in which two runs differ (model, sizes, options, groups of figures of the chip), and runs between the two.

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
from llmviewer.planning.run_metrics import RunMetric
from llmviewer.planning.why_chips import CHIP_GROUPS, NOT_STACKED, SHOWN, differing, hybrid, stacked, structure
from llmviewer.planning.why_line import Side
from llmviewer.result.result import Result
from llmviewer.techniques.options import OPTIONS, WORKLOAD

#: Options that say how a model is read; they go with it.
OF_MODEL = ("trace_model", "ignore_fields")
MODEL = "model"
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
    """Two runs with their chips.  configurations: those that were built, by what they depend on."""

    a: Side
    b: Side
    chips: tuple[Chip, Chip]
    configurations: dict[Any, Configuration] = field(default_factory=dict)

    @property
    def factors(self) -> list[Factor]:
        """The model, sizes, options and groups of figures that differ."""
        a, b = self.a.words, self.b.words
        found = []
        if self.a.model != self.b.model or any(a[name] != b[name] for name in OF_MODEL):
            found.append(Factor(name=MODEL, a=_name(self.a.model), b=_name(self.b.model)))
        names = [name for name in OPTIONS if name not in OF_MODEL and a[name] != b[name]]
        found += [Factor(name=name, a=a[name], b=b[name]) for name in names]
        groups = differing(*self.chips)
        return found + [Factor(name=one, a=SHOWN[one](self.chips[0]), b=SHOWN[one](self.chips[1])) for one in groups]

    def result(self, taken: Taken) -> Result:
        """The result with some factors from B.  Raises UserError."""
        return self._configured([taken]).answer(self._request(taken))

    def values(self, wanted: Sequence[Taken], metric: RunMetric) -> Iterator[tuple[Taken, float | UserError]]:
        """The metric of each run between A and B, or the error of one that is impossible.

        Figures that --set changes are those of one chip, so such runs are not evaluated as one array.
        """
        hypothetical = any(side.words["set"] != OPTIONS["set"].default for side in (self.a, self.b))
        chips: dict[Any, list[Taken]] = {}
        for taken in wanted:
            key = (taken.difference(CHIP_GROUPS), taken.intersection(NOT_STACKED), structure(self._chip(taken)))
            chips.setdefault(taken if hypothetical else key, []).append(taken)
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
            options = {n: v for n, v in words.items() if n not in WORKLOAD and v != OPTIONS[n].default}
            self.configurations[key] = configuration(of_model.model, stacked(chips), **options)
        return self.configurations[key]

    def _chip(self, taken: Taken) -> Chip:
        return hybrid(*self.chips, taken)


def _name(model: Any) -> str:
    return model if isinstance(model, str) else str(getattr(model, "name", "a config"))
