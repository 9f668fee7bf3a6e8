"""An engine fitted to a server's results as a page: errors before and after, constants, what was not used."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.fit_page import signed
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right

METRICS = (
    left("Metric"),
    right("Rows"),
    right("Error before"),
    right("after"),
    right("Bias before"),
    right("after"),
    right("In 80 % before"),
    right("after"),
    right("80 % interval now"),
)
CONSTANTS = (
    left("Constant"),
    right("Before"),
    right("After"),
    right("±", rank=1),
    right("Rows"),
    left("Of", rank=2),
)
MEANING = (
    ("Error", "median of |predicted / measured - 1|; after: every run predicted by constants fitted without it"),
    ("Rows", "figures that determine a constant; kept: they do not, it is the preset's"),
)
WORSE = "held-out runs are predicted worse than by the preset; add runs of other concurrency, or doubt an outlying one"
ONE_RUN = "one run: none can be held out, so that no error after is known; its level is in the constants"


def page(document: dict[str, Any]) -> Page:
    """Returns the page of a fitted engine.  document: that of calibrate/own_engine.py."""
    title = f"{document['engine']} on {document['hardware']}: {document['rows']} figures of {document['runs']} runs"
    parts: Page = (
        Table(columns=METRICS, rows=tuple(Row(cells=_metric(one)) for one in document["metrics"]), title=title),
        Table(columns=CONSTANTS, rows=tuple(Row(cells=_constant(one)) for one in document["constants"])),
        Facts(lines=MEANING, emphasis=Emphasis.FAINT),
    )
    lines = [(str(count), reason) for reason, count in document["not_used"].items()]
    lines += [("", f"{one['metric']}: {WORSE}") for one in document["metrics"] if _is_worse(one)]
    if document["runs"] == 1:
        lines.append(("", ONE_RUN))
    if lines:
        parts = (*parts, Facts(title="Not used, or not known", lines=tuple(lines), emphasis=Emphasis.WARNING))
    holds = "; ".join(document["configurations"])
    written = (
        ("Written", document["output"]),
        ("Holds for", f"{holds}; elsewhere with part of the change and wider intervals"),
        ("Next", document["next"]),
    )
    return (*parts, Facts(lines=written))


def _is_worse(one: dict[str, Any]) -> bool:
    return bool(one["after"]) and one["after"]["median"] > one["before"]["median"]


def _metric(one: dict[str, Any]) -> tuple[str, ...]:
    before, after, (low, high) = one["before"], one["after"], one["interval_80"]

    def each(name: str, shown: Any) -> tuple[str, str]:
        return shown(before[name]), shown(after[name]) if after else "-"

    return (
        one["metric"],
        fmt.whole(one["rows"]),
        *each("median", fmt.percent),
        *each("bias", signed),
        *each("inside_80", fmt.percent),
        f"{signed(low - 1.0)} to {signed(high - 1.0)}",
    )


def _constant(one: dict[str, Any]) -> tuple[str, ...]:
    unit = f" {one['unit']}" if one["unit"] else ""
    known = one["rows"] > 0
    return (
        one["constant"],
        f"{one['before']:.4g}{unit}",
        f"{one['after']:.4g}{unit}" if known else "kept",
        fmt.percent(one["spread"]) if known else "",
        fmt.whole(one["rows"]) if known else "0",
        one["meaning"],
    )
