"""Files of an answer, each at an address with the same query as the page."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response, abort, request

from llmviewer.reports import markdown, simulation_page, sizing_page
from llmviewer.reports.tables import csv_text, safe_frame
from llmviewer.reports.web.equivalents import run_of
from llmviewer.reports.web.state import OF_FORMS, parsed
from llmviewer.reports.web.tabs.asked import answered_of
from llmviewer.reports.web.tabs.compare import why_of
from llmviewer.reports.web.tabs.explain import explanation_of
from llmviewer.reports.web.tabs.load import simulation_of
from llmviewer.reports.web.tabs.size import sizing_of
from llmviewer.reports.web.tabs.sweep import batches_of, inputs_of
from llmviewer.reports.web.view import View, points

downloads = Blueprint("downloads", __name__)


@downloads.get("/download/<name>")
def download(name: str) -> Response:
    """A file of the answer to the query; not found for any other name.  Raises UserError."""
    if name not in FILES:
        abort(404)
    kind, make = FILES[name]
    content = make(View(state=parsed(request.query_string.decode("utf-8", "replace"))))
    return Response(content, mimetype=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def _report(view: View) -> str:
    from llmviewer.api.trials import verdict
    from llmviewer.reports.html import page
    from llmviewer.reports.report import Report

    found = verdict(view.configuration, view.request, view.result)
    columns = _points(view, [view.sizes["input_len"]])
    command, _ = run_of(view, "report", "", view.options)
    made = Report(results={view.name: view.result}, points=columns, verdicts={view.name: found}, command=command)
    return page.text(made)


def _points(view: View, inputs: list[int]) -> dict[str, list[Any]]:
    return points(view, batches_of(view), inputs, [view.sizes["output_len"]])


def _json(answered: Callable[[View], Any]) -> Callable[[View], str]:
    """The file of an answer that has a document of the command line."""
    return lambda view: json.dumps(answered(view).to_dict(), indent=1)


def _operators(view: View) -> str:
    return _csv(view.result.operators)


def _sweep(view: View) -> str:
    import pandas as pd

    return _csv(pd.DataFrame(_points(view, inputs_of(view))))


def _csv(frame: Any) -> str:
    content: str = safe_frame(frame).to_csv(index=False)
    return content


def _roofline(view: View) -> bytes:
    from llmviewer.reports.plots.plot import plot

    stream = io.BytesIO()
    plot("roofline", view.result).savefig(stream, format="png", dpi=160)
    return stream.getvalue()


def _answered_page(view: View) -> str:
    return markdown.text(OF_FORMS[view.state.tab].page_of(answered_of(view)))


def _answered_rows(view: View) -> str:
    return csv_text(answered_of(view).rows())


#: Name -> media type, and the function that makes the file.
FILES: dict[str, tuple[str, Callable[[View], str | bytes]]] = {
    "report.html": ("text/html", _report),
    "analysis.json": ("application/json", _json(lambda view: view.result)),
    "operators.csv": ("text/csv", _operators),
    "sweep.csv": ("text/csv", _sweep),
    "roofline.png": ("image/png", _roofline),
    "explanation.json": ("application/json", _json(explanation_of)),
    "why.json": ("application/json", _json(why_of)),
    "size.md": ("text/markdown", lambda view: markdown.text(sizing_page.page(sizing_of(view)))),
    "size.json": ("application/json", _json(sizing_of)),
    "size.csv": ("text/csv", lambda view: csv_text(sizing_of(view).rows())),
    "simulation.md": ("text/markdown", lambda view: markdown.text(simulation_page.page(simulation_of(view)))),
    "simulation.json": ("application/json", _json(simulation_of)),
    "simulation.csv": ("text/csv", lambda view: csv_text(simulation_of(view).request_rows())),
    **dict.fromkeys((f"{name}.md" for name in OF_FORMS), ("text/markdown", _answered_page)),
    **dict.fromkeys((f"{name}.json" for name in OF_FORMS), ("application/json", _json(answered_of))),
    **dict.fromkeys((f"{name}.csv" for name in OF_FORMS), ("text/csv", _answered_rows)),
}
