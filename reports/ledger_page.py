"""The ledger as a page: errors per source and, on request, every published figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right

LEDGER_COLUMNS = (
    left("Source"),
    left("Preset", rank=2),
    left("Chips", rank=3),
    right("Figures"),
    right("MAPE"),
    right("Median", rank=1),
    right("Bias"),
    right("In 80 %"),
    right("Roofline"),
    right("Last", rank=1),
)
FIGURES = (
    left("Hardware"),
    left("Model"),
    left("Weights", rank=2),
    left("Options", rank=1),
    right("Batch"),
    right("Input", rank=1),
    right("Output", rank=1),
    left("Metric"),
    right("Published"),
    right("Predicted"),
    right("80 %", rank=3),
    right("Error"),
    left("Basis", rank=4),
)
MEANING = (
    (
        "MAPE",
        "mean of |predicted / published - 1|; Roofline: MAPE of the data-sheet roofline; Last: at the last release",
    ),
    ("Bias", "median of predicted / published - 1, in the unit of the figure"),
)


def page(document: Mapping[str, Any], last: Mapping[str, float], rows: bool = False) -> Page:  # noqa: FBT001, FBT002
    """Returns the page of the ledger.

    document: the JSON object of `calibrate ledger`.  last: source -> MAPE at the last release.  rows: include figures.
    """
    total = document["total"]
    table = Table(
        title="Published measurements, none used for fitting",
        columns=LEDGER_COLUMNS,
        rows=tuple(Row(cells=_source(source, last)) for source in document["sources"]),
        total=("all", "", "", *_numbers(total), ""),
    )
    parts: Page = (table, Facts(lines=MEANING, emphasis=Emphasis.FAINT))
    if rows:
        parts = (*parts, *figures(document["rows"]))
    missing = [row for row in document["rows"] if row["reason"]]
    if missing:
        reasons = tuple((f"{row['source']}", f"{row['hardware']}, {row['model']}: {row['reason']}") for row in missing)
        parts = (*parts, Facts(title="Not predicted", lines=reasons, emphasis=Emphasis.WARNING))
    return parts


def figures(rows: Sequence[Mapping[str, Any]]) -> Page:
    """Returns one table of figures per source."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["predicted"] is not None:
            found.setdefault(row["source"], []).append(Row(cells=_figure(row)))
    return tuple(Table(title=name, columns=FIGURES, rows=tuple(listed)) for name, listed in found.items())


def _source(source: Mapping[str, Any], last: Mapping[str, float]) -> tuple[str, ...]:
    before = last.get(source["source"])
    last_mape = fmt.DASH if before is None else fmt.percent(before)
    return (source["source"], source["preset"], ", ".join(source["hardware"]), *_numbers(source), last_mape)


def _numbers(summed: Mapping[str, Any]) -> tuple[str, ...]:
    if not summed["rows"]:
        return ("0", *[fmt.DASH] * 5)
    return (
        fmt.whole(summed["rows"]),
        fmt.percent(summed["mape"]),
        fmt.percent(summed["median"]),
        fmt.signed(summed["bias"]),
        fmt.percent(summed["covered80"]),
        fmt.percent(summed["ideal_mape"]),
    )


def _figure(row: Mapping[str, Any]) -> tuple[str, ...]:
    devices = f"{row['devices']} × " if row["devices"] > 1 else ""
    batch = "max" if row["batch"] is None else fmt.whole(row["batch"])
    return (
        f"{devices}{row['hardware']}",
        row["model"],
        row["quantization"],
        ", ".join(f"{name} {text}" for name, text in row["options"].items()),
        batch,
        fmt.whole(row["input_len"]),
        fmt.whole(row["output_len"]),
        row["metric"],
        fmt.digits(row["published"]),
        fmt.digits(row["predicted"]),
        f"{fmt.digits(row['low80'])} to {fmt.digits(row['high80'])}",
        fmt.signed(row["error"]),
        row["basis"],
    )
