"""Compare: configurations side by side, their operators on one roofline, and the difference by factor."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from llmviewer.core.errors import UserError
from llmviewer.planning.why import Why, why
from llmviewer.reports import comparison_page, why_page
from llmviewer.reports.html import charts, operators, roofline, waterfall
from llmviewer.reports.report import Report
from llmviewer.reports.web import graphs
from llmviewer.reports.web.markup import Piece, block, page, piece
from llmviewer.reports.web.questions import MOST_ANSWERS
from llmviewer.reports.web.view import View, view_of

FIRST = "Keep this configuration, change it, and both are compared here."
#: Buttons with the functions of assets/viewer.js that they call.
BUTTONS = (("keep", "Keep this configuration"), ("forget", "Forget all"))


def content(view: View) -> list[Piece]:
    """The configurations that were kept, with this one last, and why it is faster or slower than the first."""
    if not view.state.others:
        return [block(piece("note", FIRST) + piece("buttons", BUTTONS[:1]))]
    try:
        return [block(piece("buttons", BUTTONS)), *_compared(view)]
    except UserError as error:  # of a configuration that was kept, which a button forgets
        return [block(piece("buttons", BUTTONS) + piece("alerts", [str(error)]))]


def _compared(view: View) -> list[Piece]:
    """Tables and charts of all configurations.  Raises UserError for one that has no answer."""
    views = [*(view_of(query, view.theme) for query in view.state.others), view]
    names = _distinct([one.name for one in views])
    answers = Report(results=dict(zip(names, (one.result for one in views), strict=True))).configurations
    lines = operators.lines(answers)
    return [
        block(page(comparison_page.side_by_side(answers))),
        *_difference(views[0], view),
        graphs.graph(roofline.chart(answers, lines), view.theme),
        graphs.graph(charts.bounds(answers), view.theme),
        graphs.graph(charts.memory(answers), view.theme),
    ]


def _distinct(names: list[str]) -> list[str]:
    """The names, with a number where one occurs again."""
    return [name if name not in names[:at] else f"{name} ({at + 1})" for at, name in enumerate(names)]


def _difference(first: View, last: View) -> list[Piece]:
    """The waterfall by factor from the first configuration to the last, and the page of `why`."""
    try:
        found = why_of(last)
    except UserError as error:
        return [block(piece("note", f"The difference cannot be split by factor: {error}"))]
    answer = found.to_dict()
    shares = {one["name"]: one["amount"] for one in answer["factors"] if one["amount"]}
    ends = (first.name, answer["a"]), (last.name, answer["b"])
    return [
        block(piece("heading", "Why")),
        graphs.graph(waterfall.chart(*ends, shares, answer["metric"]), last.theme),
        block(page(why_page.page(found))),
    ]


def why_of(last: View) -> Why:
    """The difference from the first configuration that was kept to this one.  Raises UserError."""
    if not last.state.others:
        raise UserError("no configuration is kept to compare this one with")
    return why_between(view_of(last.state.others[0], "light"), last)


def metric_of(last: View, wanted: str = "tpot_s") -> str:
    """The metric in which a configuration is compared: that wanted, TTFT where nothing is decoded."""
    return wanted if last.sizes["output_len"] > 1 else "ttft_s"


def why_between(first: View, last: View, wanted: str = "tpot_s") -> Why:
    """The difference between two configurations in a metric, TTFT where nothing is decoded.  Raises UserError."""
    queries = (replace(one.state, shown={}, asked={}, others=()).query() for one in (first, last))
    return _why(*queries, metric_of(last, wanted))


@lru_cache(maxsize=MOST_ANSWERS)
def _why(before: str, after: str, metric: str) -> Why:
    """The difference between two questions by their queries, which the page and its file share.  Raises UserError."""
    first, last = view_of(before, "light"), view_of(after, "light")
    sides = [{"model": one.state.subject(), "hardware": one.state.hardware, **one.options} for one in (first, last)]
    return why(*sides, metric=metric)
