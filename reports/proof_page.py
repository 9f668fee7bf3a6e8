"""Kernels and layers of a model as a page, measured beside predicted."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.fit_page import WHOLE, signed, whole_cells
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right
from llmviewer.reports.validation_page import MEANING

KERNELS = (left("Kernel"), right("Rows"), right("MAPE"), right("Bias", rank=1), right("In 80 %"), right("Roofline"))


def page(document: dict[str, Any]) -> Page:
    """Returns the page of a proof.  document: that of calibrate/proof.py."""
    kernels = tuple(Row(cells=_cells(score)) for score in document["scores"])
    layers = tuple(Row(cells=whole_cells(row)) for row in document["layers"])
    parts: Page = ()
    if kernels:
        parts = (
            Table(columns=KERNELS, rows=kernels, title=f"Kernels of {document['model']}, measured and predicted"),
            Facts(lines=MEANING, emphasis=Emphasis.FAINT),
        )
    if layers:
        parts = (*parts, Table(columns=WHOLE, rows=layers, title="Layers and models, never fitted"))
    if document["missing"]:
        lines = tuple(("", text) for text in document["missing"])
        parts = (*parts, Facts(title="Not measured or not predicted", lines=lines, emphasis=Emphasis.WARNING))
    return parts


def _cells(score: dict[str, Any]) -> tuple[str, ...]:
    return (
        score["kernel"],
        fmt.whole(score["rows"]),
        fmt.percent(score["mape"]),
        signed(score["bias"]),
        fmt.percent(score["covered80"]),
        fmt.percent(score["ideal_mape"]),
    )
