"""A figure of the survey: queries, rows, plot, claims and LLM-Viewer's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from llmviewer.reports.survey.ask import SurveyQuery
from llmviewer.reports.survey.peer import Peer
from llmviewer.result.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.page import Table
    from llmviewer.reports.plots.style import Style

#: Name -> rows of a figure; "" is its main table, others are additional ones (roofs).
Frames: TypeAlias = Mapping[str, Any]
#: A DataFrame or a column of one; the pandas stubs do not type its values.
Rows: TypeAlias = Any
Results: TypeAlias = Mapping[str, Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a claim holds by our counts, and the numbers that show it."""

    holds: bool
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A conclusion of the survey, checked as a relation of the rows."""

    says: str
    check: Callable[[Frames], Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyFigure:
    """One figure or table.

    setting: models, chip and sizes.  peers: numbers of LLM-Viewer to compare with.  differs: why numbers differ, or
    why there are none.  table: rows as the survey prints them.  remark: conclusion from LLM-Viewer's own numbers,
    which are rows of `peer.compared`.
    """

    title: str
    setting: str
    queries: Mapping[str, SurveyQuery]
    frames: Callable[[Results], Frames]
    draw: Callable[[Frames, Style], Picture]
    claims: tuple[Claim, ...]
    peers: tuple[Peer, ...] = ()
    differs: str = ""
    table: Callable[[Frames], Table] | None = None
    remark: Callable[[Rows], str] | None = None


def rising(values: Iterable[float]) -> bool:
    """Whether every value is larger than the previous one."""
    return all(after > before for before, after in pairwise(values))


def joined_rows(results: Results, **columns: str) -> Rows:
    """Returns the rows of all points, with the name of the query as first column `asked`.

    columns: name in the rows -> column of `Result.to_frame`.
    """
    import pandas as pd

    sizes = {name: name for name in ("batch_size", "input_len", "output_len")}
    wanted = {"model": "model", "hardware": "hardware", **sizes, **columns}
    frames = []
    for query, result in results.items():
        rows = result.to_frame()[list(wanted.values())].set_axis(list(wanted), axis="columns")
        rows.insert(0, "asked", query)
        frames.append(rows)
    return pd.concat(frames, ignore_index=True)
