"""All chips that hold the request, as dots by price and time per token; one of them is chosen for the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from html import escape
from typing import Any

from llmviewer.api.calls import on_every_chip, request
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.language.quantity import LATENCIES
from llmviewer.reports import comparison_page
from llmviewer.reports import format as fmt
from llmviewer.reports.html.charts import FEW, IN_FULL, Chart, Json
from llmviewer.reports.web import graphs
from llmviewer.reports.web.markup import Piece, block, piece
from llmviewer.reports.web.questions import MOST_ANSWERS
from llmviewer.reports.web.state import parsed
from llmviewer.reports.web.view import View
from llmviewer.result.comparison import Comparison
from llmviewer.techniques.options import WORKLOAD

#: Id of the graph, whose clicks choose a chip.
GRAPH = "fits-on"
#: Where dots with a price end, and those without begin, as parts of the width.
PRICED, UNPRICED = 0.86, 0.9
MS = 1e3


@frozen
class Dot:
    """A chip that holds the request.  usd: per hour of all devices, None where no price is known."""

    chip: str
    seconds: float
    usd: float | None
    words: str


def content(view: View) -> list[Piece]:
    """The strip, a menu with the same chips, and the table of all."""
    try:
        found, table = _compared(_question(view))
    except UserError as error:
        return [block(piece("note", f"No other chip takes this request: {error}"))]
    metric = "tpot_s" if view.sizes["output_len"] > 1 else "ttft_s"
    dots = list(_dots(found, metric))
    own = view.configuration.chip.name
    count = len(found.results) + len(found.refused or {})
    said = f"{len(dots)} of {count} chips hold it. A click on a dot, or the menu, sets the chip."
    listed = {own: f"{own}: does not hold it", **{one.chip: one.words for one in dots}}
    menu = {"name": "hardware", "label": "Fits on", "value": own, "choices": listed}
    drawn = [graphs.graph(_chart(dots, own, metric), view.theme, GRAPH)] if dots else []
    return [block(piece("heading", "Fits on") + piece("note", said)), *drawn, block(piece("chooser", menu) + table)]


def _question(view: View) -> str:
    """The question without its chip, its sizes stated, by its query."""
    words = {**view.state.words, **{name: str(size) for name, size in view.sizes.items()}}
    return replace(view.state, hardware="", words=words, shown={}, asked={}, others=()).query()


@lru_cache(maxsize=MOST_ANSWERS)
def _compared(query: str) -> tuple[Comparison, str]:
    """The comparison of a question on all chips, and its table as HTML.  Raises UserError."""
    state = parsed(query)
    words = state.options()
    sizes = {name: words.pop(name) for name in WORKLOAD}
    found = on_every_chip(request(**sizes), [{"model": state.subject(), **words}])
    return found, piece("folded", "All chips", comparison_page.page(found))


def _dots(found: Comparison, metric: str) -> Iterator[Dot]:
    """The chips that hold the request, in the order of the comparison: the fastest first."""
    for result in found.results:
        if result.fits:
            seconds, usd = float(getattr(result, metric)), comparison_page.known(result, "usd_per_hour")
            price = "no price known" if usd is None else f"{fmt.digits(usd)} $/h"
            chip = result.analysis.system.chip.name
            words = f"{chip}: {LATENCIES[metric].label} {fmt.duration(seconds)}, {price}"
            yield Dot(chip=chip, seconds=seconds, usd=usd, words=words)


def _chart(dots: list[Dot], own: str, metric: str) -> Chart:
    """The strip: dollars per hour across, time down to up; chips without a price stand in a lane of their own."""
    title = LATENCIES[metric].label
    priced, others = [one for one in dots if one.usd is not None], [one for one in dots if one.usd is None]
    data = [_trace(listed, own, name, axis)
            for listed, name, axis in ((priced, "with a price", "x"), (others, "no price known", "x2"))]  # fmt: skip
    return Chart(
        key=GRAPH,
        title="",
        alt=f"{len(dots)} chips by dollars per hour and {title}; {own} is the star. The menu below names them.",
        table="",
        data=data,
        layout={
            "showlegend": False,
            "xaxis": {"title": {"text": "Dollars per hour"}, "type": "log", "domain": [0.0, PRICED], **FEW},
            "xaxis2": {"domain": [UNPRICED, 1.0], "tickvals": [0], "ticktext": ["no price"], "range": [-1, 1],
                       "zeroline": False, "anchor": "y"},
            "yaxis": {"title": {"text": f"{title} (ms)"}, "type": "log", **IN_FULL},
            "hovermode": "closest",
        },
        height=340,
    )  # fmt: skip


def _trace(dots: list[Dot], own: str, name: str, axis: str) -> Json:
    """The dots of one lane; the chip of the page is a star."""
    is_own = [one.chip == own for one in dots]
    marker: dict[str, Any] = {
        "color": ["--ink" if one else "--series-0" for one in is_own],
        "size": [16 if one else 11 for one in is_own],
        "symbol": ["star" if one else "circle" for one in is_own],
        "opacity": 0.8,
    }
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [0.0 if one.usd is None else one.usd for one in dots],
        "y": [one.seconds * MS for one in dots],
        "xaxis": axis,
        "customdata": [one.chip for one in dots],
        "hovertext": [escape(one.words) for one in dots],
        "hoverinfo": "text",
        "marker": marker,
    }
