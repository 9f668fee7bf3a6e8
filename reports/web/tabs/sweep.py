"""Sweep: times, throughput and memory over batch sizes or lengths."""

from __future__ import annotations

from llmviewer.reports.html import curves
from llmviewer.reports.web import graphs
from llmviewer.reports.web.markup import Piece, block, group, piece
from llmviewer.reports.web.view import View, points, report

#: Batch sizes of the curves.
BATCHES = tuple(2**power for power in range(10))


def content(view: View) -> list[Piece]:
    """Curves over batch sizes, for the prompt asked, half of it and twice it."""
    found = curves.sweep(report(view, points(view, batches_of(view), inputs_of(view), [view.sizes["output_len"]])))
    download = block(piece("download", "sweep.csv", "Download as CSV", view.state.query()))
    drawn = group("grid", *(graphs.graph(chart, view.theme) for chart in found.charts))
    notes = "".join(piece("note", text) for text in (found.left_out, found.bands) if text)
    return [group("above", graphs.legend(found, view.theme), download), drawn, block(notes)]


def batches_of(view: View) -> list[int]:
    """Batch sizes of the curves: powers of two, and the one asked."""
    return sorted({*BATCHES, view.sizes["batch_size"]})


def inputs_of(view: View) -> list[int]:
    """Prompt lengths of the curves: the one asked, half of it and twice it."""
    asked = view.sizes["input_len"]
    return sorted({max(asked // 2, 1), asked, asked * 2})
