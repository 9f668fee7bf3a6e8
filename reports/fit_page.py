"""A fit as a page: held-out errors per kernel, predictions of whole models, excluded rows."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right

FIT_COLUMNS = (
    left("Kernel / formats / engine"),
    left("Regime"),
    right("Rows"),
    right("MAPE"),
    right("Median", rank=2),
    right("Bias", rank=1),
    right("In 80 %"),
)
WHOLE = (
    left("Model"),
    right("Layers"),
    left("Dtype", rank=1),
    left("Stage"),
    right("Batch"),
    right("Tokens"),
    right("Measured"),
    right("Predicted"),
    right("80 %", rank=2),
    right("Error"),
)
AGAINST = (left("Kernel / formats / engine"), left("Constants of"), right("Memory-bound"), right("Compute-bound"))
MEANING = (
    ("MAPE", "mean of |predicted / measured - 1|; each row is predicted by constants fitted without its shape"),
    ("In 80 %", "share of rows inside the 80 % interval derived from rows of other shapes"),
)


def page(document: dict[str, Any], chip: str) -> Page:
    """Returns the page of a fit.  document: the fit's JSON object."""
    rows = tuple(Row(cells=_cells(fit)) for fit in document["fits"])
    parts: Page = (
        Table(columns=FIT_COLUMNS, rows=rows, title=f"Kernel fits on {chip}"),
        Facts(lines=MEANING, emphasis=Emphasis.FAINT),
    )
    if document["whole"]:
        predicted = tuple(Row(cells=whole_cells(row)) for row in document["whole"])
        parts = (*parts, Table(columns=WHOLE, rows=predicted, title="Layers and models predicted with these fits"))
    beside = tuple(Row(cells=_ratios(one)) for one in document["against"])
    if beside:
        title = "Time on this card over that with the constants of torch's kernels on others"
        parts = (*parts, Table(columns=AGAINST, rows=beside, title=title))
    for title, key in (
        ("Not fitted", "left_out"),
        ("Unstable timings, fitted because most rows of their kind are unstable", "unstable"),
    ):
        lines = tuple((rows_of(count), reason) for reason, count in document[key].items())
        if lines:
            parts = (*parts, Facts(title=title, lines=lines, emphasis=Emphasis.WARNING))
    return (*parts, Facts(lines=_written(document)))


def _ratios(one: dict[str, Any]) -> tuple[str, ...]:
    """Cells of a fit beside another chip's."""
    return (one["fit"], one["chip"], *(f"{one[name]:.2f}" if name in one else "-" for name in ("memory", "compute")))


def rows_of(count: int) -> str:
    """Number of rows in words."""
    return f"{fmt.whole(count)} row{'s' if count > 1 else ''}"


def _written(document: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    lines = [("Profile", document["profile"]), *power_line(document)]
    if document["kept"]:
        lines.append(
            ("Kept", f"{len(document['kept'])} fits of the profile that was extended: {', '.join(document['kept'])}")
        )
    if document["more_rows"]:
        lines.append(("More rows", f"{document['more_rows']} adds rows to kinds with too few"))
    if document["chip_file"]:
        note = "no spec file describes this device; its best measured rates replace data-sheet figures"
        lines.append(("Chip", f"{document['chip_file']}: {note} (--hardware {document['chip_file']})"))
    return (*lines, ("Next", document["next"]))


def power_line(document: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Line on the shares of board power that were fitted; none without."""
    if not (own := document["power"]):
        return ()
    parts = ", ".join(f"{name} {own[name]:.2f}" for name in ("idle", "compute", "memory"))
    error = f"held out: median error {fmt.percent(own['median'])}, largest {fmt.percent(own['most'])}"
    return (("Power", f"shares of the board power: {parts}; {fmt.whole(own['rows'])} rows, {error}"),)


def _cells(fit: dict[str, Any]) -> tuple[str, ...]:
    return (
        fit["fit"],
        fit["regime"],
        fmt.whole(fit["rows"]),
        fmt.percent(fit["mape"]),
        fmt.percent(fit["median"]),
        signed(fit["bias"]),
        fmt.percent(fit["covered80"]) if "covered80" in fit else "-",
    )


def whole_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Cells of a measured and predicted layer or model, in the order of WHOLE."""
    known = row["predicted_us"] is not None
    low, high = row["interval_80_us"] or (0.0, 0.0)
    return (
        f"{row['model']} ({row['table']}{'' if row['stable'] else ', unstable'})",
        fmt.whole(row["layers"]),
        row["dtype"],
        f"{row['stage']}{', graph' if row['graph'] else ''}",
        fmt.whole(row["batch"]),
        fmt.whole(row["tokens"]),
        fmt.duration(row["measured_us"] * 1e-6),
        fmt.duration(row["predicted_us"] * 1e-6) if known else row["reason"],
        fmt.durations(low * 1e-6, high * 1e-6) if known else "",
        signed(row["error"]) if known else "",
    )


def signed(ratio: float) -> str:
    """A relative error with its sign."""
    rounded = round(ratio, 3)
    return fmt.signed(rounded) if rounded else "0 %"
