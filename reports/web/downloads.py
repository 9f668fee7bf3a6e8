"""Files of an answer, each at an address with the same query as the page."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response, request

from llmviewer.core.errors import UserError, unknown
from llmviewer.reports.web.equivalents import run_of
from llmviewer.reports.web.state import parsed
from llmviewer.reports.web.view import View, points

downloads = Blueprint("downloads", __name__)


@downloads.get("/download/<name>")
def download(name: str) -> Response:
    """A file of the answer to the query; status 400 with one line for a question without an answer."""
    try:
        if name not in FILES:
            raise unknown("file", name, FILES)
        kind, make = FILES[name]
        content = make(View(state=parsed(request.query_string.decode("utf-8", "replace"))))
    except UserError as error:
        return Response(f"{error}\n", status=400, mimetype="text/plain")
    return Response(content, mimetype=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def _report(view: View) -> str:
    from llmviewer.api.verdict import verdict
    from llmviewer.reports.html import page
    from llmviewer.reports.report import Report

    found = verdict(view.configuration, view.request, view.result)
    columns = _points(view)
    command, _ = run_of(view, "report", "", view.options)
    made = Report(results={view.name: view.result}, points=columns, verdicts={view.name: found}, command=command)
    return page.text(made)


def _points(view: View) -> dict[str, list[Any]]:
    from llmviewer.reports.web.tabs.sweep import batches_of

    return points(view, batches_of(view), [view.sizes["input_len"]], [view.sizes["output_len"]])


def _json(view: View) -> str:
    return json.dumps(view.result.to_dict(), indent=1)


def _operators(view: View) -> str:
    return _csv(view.result.operators)


def _sweep(view: View) -> str:
    import pandas as pd

    return _csv(pd.DataFrame(_points(view)))


def _csv(frame: Any) -> str:
    from llmviewer.reports.cells import safe_frame

    content: str = safe_frame(frame).to_csv(index=False)
    return content


def _roofline(view: View) -> bytes:
    from llmviewer.reports.plots.plot import plot

    stream = io.BytesIO()
    plot("roofline", view.result).savefig(stream, format="png", dpi=160)
    return stream.getvalue()


#: Name -> media type, and the function that makes the file.
FILES: dict[str, tuple[str, Callable[[View], str | bytes]]] = {
    "report.html": ("text/html", _report),
    "analysis.json": ("application/json", _json),
    "operators.csv": ("text/csv", _operators),
    "sweep.csv": ("text/csv", _sweep),
    "roofline.png": ("image/png", _roofline),
}
