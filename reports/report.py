"""Data of a report: results of several configurations for one request, and their sweeps over sizes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from llmviewer.core.frozen import frozen
from llmviewer.reports.plots import KINDS, PlotData
from llmviewer.reports.plots.plot import drawn, style_of
from llmviewer.result.comparison import Comparison
from llmviewer.result.result import Result, Verdict
from llmviewer.simulation.result import Simulation

#: Kind that runs other rates, which only a load that arrives has.
OF_RATES = "latency-rate"


def pictures(made: Simulation) -> dict[str, bytes]:
    """Returns a PNG file for each kind of plot of loads, by its summary; none of a server that answers nothing."""
    if made.saturated or not made.to_dict()["completed"]:
        return {}
    found = {}
    for name, kind in KINDS.items():
        if kind.data is PlotData.LOAD and (name != OF_RATES or made.traffic.is_open):
            stream = io.BytesIO()
            drawn(kind, made, style_of("light", "page"), {}).savefig(stream, format="png")
            found[kind.summary] = stream.getvalue()
    return found


SCHEMA = "llmviewer.report/1"


@frozen(slots=False, eq=False)
class Report:
    """Results of all configurations.

    results: name -> Result of the request that is shown in detail.
    verdicts: name -> verdict on that request.  command: the command that makes the report.
    loads: name -> simulation object of a configuration under load; pictures: name -> PNG files of it, by summary.
    page: HTML that answers for other sizes of the same configurations (`llmviewer page`); empty without one.
    points: `configuration` (the name) and the columns of Result.columns() over all sizes, which are the same for each
    configuration and in the same order.  All points are kept; only drawings thin them.
    """

    results: Mapping[str, Result]
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    command: str = ""
    points: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    loads: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    pictures: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    page: str = ""

    @cached_property
    def configurations(self) -> list[dict[str, Any]]:
        """Analysis objects with their `configuration` and ratios to the first, and `served` for their verdicts."""
        listed = Comparison(results=tuple(self.results.values())).configurations()
        return [
            {"configuration": name, **answer, **(self.results[name].of_engine() if name in self.verdicts else {})}
            for name, answer in zip(self.results, listed, strict=True)
        ]

    @property
    def title(self) -> str:
        """Models and chips of all configurations."""
        models, chips = (
            _unique(answer[key]["name"] for answer in self.configurations) for key in ("model", "hardware")
        )
        return f"{', '.join(models)} on {', '.join(chips)}"

    @property
    def fits(self) -> bool:
        """Whether every configuration fits in memory."""
        return all(result.fits for result in self.results.values())

    def to_dict(self) -> dict[str, Any]:
        """Returns the full analysis of every configuration, and a row per point."""
        whole = {"schema": SCHEMA, "title": self.title, "configurations": self.configurations, "points": self.rows()}
        return {**whole, "loads": dict(self.loads)} if self.loads else whole

    def rows(self) -> list[dict[str, Any]]:
        """Returns one row per point; missing values are None."""
        columns = {name: list(map(_plain, values)) for name, values in self.points.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _unique(names: Any) -> list[str]:
    return list(dict.fromkeys(names))


def _plain(value: Any) -> Any:
    """Converts to a Python number; NaN and infinity become None."""
    number = value.item() if hasattr(value, "item") else value
    return None if number != number or number in (float("inf"), float("-inf")) else number  # noqa: PLR0124
