"""The ledger as a page: errors per source, published figures, and figures of whole requests one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
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


COLUMNS = (
    left("Figure"),
    right("Requests", rank=2),
    right("Prompt", rank=3),
    right("Output", rank=3),
    right("Measured"),
    right("Predicted"),
    right("80 %"),
    right("Roofline", rank=1),
    right("Difference"),
    left("Verdict"),
)
MEANING_OF_FIGURES = ("Difference", "measured / predicted - 1; Roofline: data-sheet rates, no engine and no queue")
TTFT_MEANING = ("TTFT", "with continuous batching it also depends on how the benchmark sends its requests")
#: Metric -> heading.
HEADINGS = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "latency_ms": "E2E",
    "throughput_tok_s": "Throughput",
    "decode_tok_s": "Decode",
    "others_ms": "other kernels",
}


def parts(figures: Sequence[dict[str, Any]]) -> Page:
    """Returns a table for each configuration, and what is slower or faster than its interval allows."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for figure in figures:
        title = f"{figure['model']} on {figure['device']}, engine {figure['preset']}"
        runs.setdefault(title, []).append(figure)
    tables = [
        Table(columns=COLUMNS, rows=tuple(Row(cells=_cells(figure)) for figure in own), title=title)
        for title, own in runs.items()
    ]
    notes = dict.fromkeys(str(figure["note"]) for figure in figures if figure.get("note"))
    lines = [*(("Note", note) for note in notes), MEANING_OF_FIGURES]
    lines += [TTFT_MEANING] if any(figure["metric"] == "ttft_ms" for figure in figures) else []
    return (*tables, _verdict(figures), Facts(lines=tuple(lines), emphasis=Emphasis.FAINT))


def _verdict(figures: Sequence[dict[str, Any]]) -> Facts:
    """The figures outside their intervals, slower ones first, the largest difference first."""
    lines = []
    for verdict in ("slower", "faster"):
        own = [figure for figure in figures if figure["verdict"] == verdict]
        for figure in sorted(own, key=lambda figure: -abs(figure["difference"])):
            text = f"{_value(figure, figure['measured'])} measured, {_interval(figure)} expected"
            lines.append((f"{verdict.capitalize()}: {_name(figure)}", text))
    inside = sum(figure["verdict"] == "as predicted" for figure in figures)
    lines.append(("As predicted", f"{inside} of {len(figures)} figures are inside the 80 % interval"))
    return Facts(lines=tuple(lines), emphasis=Emphasis.WARNING if inside < len(figures) else Emphasis.PLAIN)


def _cells(figure: dict[str, Any]) -> tuple[str, ...]:
    return (
        _name(figure),
        f"{figure['batch']:.4g}" if figure.get("batch") else "most",
        *(_tokens(figure.get(name)) for name in ("input_len", "output_len")),
        _value(figure, figure["measured"]),
        _value(figure, figure["predicted"]),
        _interval(figure),
        _value(figure, figure["ideal"]),
        fmt.signed(figure["difference"]),
        figure["verdict"],
    )


def _tokens(length: float | None) -> str:
    """A length; a dash for that of a run of a whole system that states none."""
    return fmt.DASH if length is None or isnan(length) else fmt.whole(round(length))


def _name(figure: dict[str, Any]) -> str:
    return HEADINGS.get(figure["metric"], f"{figure['metric'].removesuffix('_ms')} kernels")


def _value(figure: dict[str, Any], value: float) -> str:
    """A value in the unit of its metric: a time, or tokens per second; a dash for one that nobody computed."""
    if isnan(value):
        return fmt.DASH
    return fmt.duration(value * 1e-3) if _is_time(figure) else f"{fmt.per_second(value)}/s"


def _interval(figure: dict[str, Any]) -> str:
    low, high = figure["interval_80"]
    if _is_time(figure):
        return fmt.durations(low * 1e-3, high * 1e-3)
    return f"{fmt.per_second(low)} to {fmt.per_second(high)}/s"


def _is_time(figure: dict[str, Any]) -> bool:
    return str(figure["metric"]).endswith("_ms")
