"""Figures of whole requests one by one: measured, predicted, interval, and which are outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right

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
MEANING = ("Difference", "measured / predicted - 1; Roofline: data-sheet rates, no engine and no queue")
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
    lines = [*(("Note", note) for note in notes), MEANING]
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
        fmt.whole(round(figure["input_len"])),
        fmt.whole(round(figure["output_len"])),
        _value(figure, figure["measured"]),
        _value(figure, figure["predicted"]),
        _interval(figure),
        _value(figure, figure["ideal"]),
        fmt.signed(figure["difference"]),
        figure["verdict"],
    )


def _name(figure: dict[str, Any]) -> str:
    return HEADINGS.get(figure["metric"], f"{figure['metric'].removesuffix('_ms')} kernels")


def _value(figure: dict[str, Any], value: float) -> str:
    """A value in the unit of its metric: a time, or tokens per second."""
    return fmt.duration(value * 1e-3) if _is_time(figure) else f"{fmt.per_second(value)}/s"


def _interval(figure: dict[str, Any]) -> str:
    low, high = figure["interval_80"]
    if _is_time(figure):
        return fmt.durations(low * 1e-3, high * 1e-3)
    return f"{fmt.per_second(low)} to {fmt.per_second(high)}/s"


def _is_time(figure: dict[str, Any]) -> bool:
    return str(figure["metric"]).endswith("_ms")
