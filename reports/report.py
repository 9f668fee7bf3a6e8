"""What a report is about: configurations that answer one request, and what they answer over lists of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from llmviewer.result.comparison import Comparison
from llmviewer.result.result import Result

SCHEMA = "llmviewer.report/1"


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """results: name -> Result of the one request shown operator by operator.

    points: columns of Result.columns() over all sizes, after `configuration`, the name; the same sizes for each, in
    the same order.  Held whole: what is drawn is thinned out, what is written is not.
    """

    results: Mapping[str, Result]
    points: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @cached_property
    def configurations(self) -> list[dict[str, Any]]:
        """Analysis objects with their `configuration`, and ratios to the first."""
        listed = Comparison(results=tuple(self.results.values())).configurations()
        return [{"configuration": name, **answer} for name, answer in zip(self.results, listed, strict=True)]

    @property
    def title(self) -> str:
        """Models and chips, each once."""
        models, chips = (
            _once(answer[what]["name"] for answer in self.configurations) for what in ("model", "hardware")
        )
        return f"{', '.join(models)} on {', '.join(chips)}"

    @property
    def fits(self) -> bool:
        """Whether every configuration fits in memory."""
        return all(result.fits for result in self.results.values())

    def to_dict(self) -> dict[str, Any]:
        """Every configuration's whole analysis, and a row per point."""
        return {"schema": SCHEMA, "title": self.title, "configurations": self.configurations, "points": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """The points, one row each, of plain numbers; what does not exist is None."""
        columns = {name: list(map(_plain, values)) for name, values in self.points.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _once(names: Any) -> list[str]:
    return list(dict.fromkeys(names))


def _plain(value: Any) -> Any:
    """A number of Python's own; not a number is nothing."""
    own = value.item() if hasattr(value, "item") else value
    return None if own != own or own in (float("inf"), float("-inf")) else own  # noqa: PLR0124
