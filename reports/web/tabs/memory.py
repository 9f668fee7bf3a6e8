"""Memory: what fills one device, and how it grows with context and batch up to the capacity."""

from __future__ import annotations

from llmviewer.reports import analysis_page
from llmviewer.reports.html import charts, curves
from llmviewer.reports.web import graphs
from llmviewer.reports.web.chosen import PLAY
from llmviewer.reports.web.markup import Piece, block, page, piece
from llmviewer.reports.web.view import View, memory_points, report

#: Prompt lengths of the curves, and batch sizes as multiples of the one asked.
LENGTHS = tuple(2**power for power in range(7, 18))
MULTIPLES = (1, 4, 16, 64)


def content(view: View) -> list[Piece]:
    """The bars of the request, its table, and memory over the context for larger and larger batches."""
    answer = view.answer
    longest = view.configuration.model.max_context
    lengths = [one for one in LENGTHS if one + view.sizes["output_len"] <= longest] or [view.sizes["input_len"]]
    batches = [view.sizes["batch_size"] * times for times in MULTIPLES]
    found = curves.sweep(report(view, memory_points(view, batches, lengths)), ("total_bytes",))
    (chart,) = found.charts
    return [
        block(piece("buttons", PLAY)),
        graphs.graph(charts.memory([answer]), view.theme),
        graphs.graph(charts.bounds([answer]), view.theme),
        graphs.graph(chart, view.theme),
        graphs.legend(found, view.theme),
        block(page(analysis_page.memory(answer))),
    ]
