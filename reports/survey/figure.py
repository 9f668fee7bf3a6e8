"""What a figure of the survey is made of: questions, rows, a picture, claims and what LLM-Viewer says."""

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

#: Rows of a figure by name; "" is the figure's own, the others stand beside it (roofs).
Frames: TypeAlias = Mapping[str, Any]
#: A DataFrame or a column of one: the stubs of pandas know the type of no value in it.
Rows: TypeAlias = Any
Results: TypeAlias = Mapping[str, Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a claim holds by our counts, and the numbers that say so."""

    holds: bool
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the survey concludes, as a relation of the rows."""

    says: str
    check: Callable[[Frames], Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyFigure:
    """One figure or table.

    title, setting: what it shows of what.  peers: numbers of LLM-Viewer beside ours.  differs: why they differ, or why
    there are none.  table: the rows as the survey prints them.  remark: what follows from LLM-Viewer's own numbers
    (rows of `peer.compared`).
    """

    title: str
    setting: str
    asks: Mapping[str, SurveyQuery]
    frames: Callable[[Results], Frames]
    draw: Callable[[Frames, Style], Picture]
    claims: tuple[Claim, ...]
    peers: tuple[Peer, ...] = ()
    differs: str = ""
    table: Callable[[Frames], Table] | None = None
    remark: Callable[[Rows], str] | None = None


def rising(values: Iterable[float]) -> bool:
    """Whether every value is above the one before."""
    return all(after > before for before, after in pairwise(values))


def joined_rows(results: Results, **columns: str) -> Rows:
    """The rows of all points, with the name of the question in front as column `asked`.

    columns: our name -> that of `Result.to_frame`.
    """
    import pandas as pd

    sizes = {name: name for name in ("batch_size", "input_len", "output_len")}
    wanted = {"model": "model", "hardware": "hardware", **sizes, **columns}
    frames = []
    for asked, result in results.items():
        rows = result.to_frame()[list(wanted.values())].set_axis(list(wanted), axis="columns")
        rows.insert(0, "asked", asked)
        frames.append(rows)
    return pd.concat(frames, ignore_index=True)
