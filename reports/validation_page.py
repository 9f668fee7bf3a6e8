"""Predictions against measurements as a page: a row per device, kernel and regime, and excluded rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports import ledger_page
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right

VALIDATION_COLUMNS = (
    left("Device"),
    left("Kernel"),
    left("Regime"),
    right("Rows"),
    right("MAPE"),
    right("Median", rank=2),
    right("Bias", rank=1),
    right("In 80 %"),
    right("In 95 %", rank=3),
    right("Roofline", rank=1),
)
LAYOUT_COLUMNS = (left("Layout"), left("Output tokens"), left("Metric"), *VALIDATION_COLUMNS[3:])
MEMORY_COLUMNS = (
    left("Engine"),
    left("Device"),
    left("Quantity"),
    left("On"),
    right("Rows"),
    right("MAPE"),
    right("Bias", rank=1),
    right("Optimism"),
)
MEMORY_MEANING = (("Optimism", "largest error towards more room than the engine found: less used, or more left"),)
MEANING = (
    (
        "MAPE",
        "mean of |predicted / measured - 1|; Median: median of the same; Bias: median of predicted / measured - 1",
    ),
    ("In 80 %", "share of rows inside the predicted 80 % interval"),
    ("Roofline", "MAPE of the data-sheet roofline, the baseline"),
)


def page(document: dict[str, Any], title: str) -> Page:
    """Returns the page of a validation.  document: the validation's JSON object."""
    rows = tuple(Row(cells=_cells(score)) for score in document["scores"])
    total = document["total"]
    table = Table(
        columns=VALIDATION_COLUMNS, rows=rows, title=title, total=("all", "", "", *_cells(total)[3:]) if total else ()
    )
    parts: Page = (table, Facts(lines=MEANING, emphasis=Emphasis.FAINT)) if rows else ()
    if document["figures"]:  # scores of so few rows would repeat them
        parts = ledger_page.parts(document["figures"]) + (parts if total["rows"] > len(document["figures"]) else ())
    parts = (*_memory(document.get("memory", ()), title), *parts, *_layouts(document.get("layouts", ()), title))
    left_out = tuple((f"{fmt.whole(count)} rows", reason) for reason, count in document["not_predicted"].items())
    if left_out:
        parts = (*parts, Facts(title="Not predicted", lines=left_out, emphasis=Emphasis.WARNING))
    return parts


def _memory(scores: Sequence[dict[str, Any]], title: str) -> Page:
    """Returns the scores of figures that engines log at start-up."""
    texts = ("engine", "device", "quantity", "on")
    rows = tuple(
        Row(
            cells=(
                *(score[name] for name in texts),
                fmt.whole(score["rows"]),
                fmt.percent(score["mape"]),
                fmt.signed(score["bias"]),
                fmt.percent(score["optimism"]),
            )
        )
        for score in scores
    )
    table = Table(columns=MEMORY_COLUMNS, rows=rows, title=title)
    return (table, Facts(lines=MEMORY_MEANING, emphasis=Emphasis.FAINT)) if rows else ()


def _layouts(scores: Sequence[dict[str, Any]], title: str) -> Page:
    """Returns the scores of whole requests by layout of the devices, unless all have one."""
    if len({score["layout"] for score in scores}) < 2:
        return ()
    rows = tuple(Row(cells=_cells(score, ("layout", "output_tokens", "metric"))) for score in scores)
    return (Table(columns=LAYOUT_COLUMNS, rows=rows, title=f"{title}, by layout and length of answers"),)


def _cells(score: dict[str, Any], names: tuple[str, ...] = ("device", "kernel", "regime")) -> tuple[str, ...]:
    return (
        *(score[name] for name in names),
        fmt.whole(score["rows"]),
        fmt.percent(score["mape"]),
        fmt.percent(score["median"]),
        fmt.signed(score["bias"]),
        fmt.percent(score["covered80"]),
        fmt.percent(score["covered95"]),
        fmt.percent(score["ideal_mape"]),
    )
