"""A report as plain tables: what CSV and Excel write, one name a table, every row with the configuration first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from llmviewer.reports.report import Report

Row: TypeAlias = dict[str, Any]


def summary(report: Report) -> list[Row]:
    """Metrics of every configuration."""
    return [
        {
            "configuration": c["configuration"],
            "model": c["model"]["name"],
            "hardware": c["hardware"]["name"],
            "devices": c["parallelism"]["devices"],
            "dtype": c["dtype"],
            **c["techniques"],
            "efficiency": c["efficiency"]["kind"],
            "engine": c["efficiency"].get("engine"),
            **c["workload"],
            **c["metrics"],
            **{f"{name}_bound": stage["bound"] for name, stage in c["stages"].items()},
            "fits": c["memory"]["fits"],
        }
        for c in report.configurations
    ]


def operators(report: Report) -> list[Row]:
    """Operators of both stages, figures of one layer."""
    return [
        {"configuration": c["configuration"], "stage": name, **operator}
        for c in report.configurations
        for name, stage in c["stages"].items()
        for operator in stage["operators"]
    ]


def memory(report: Report) -> list[Row]:
    """What fills the memory of one device, and what fits."""
    return [{"configuration": c["configuration"], **c["memory"]} for c in report.configurations]


def sources(report: Report) -> list[Row]:
    """Every figure of every chip with its page."""
    chips = {c["hardware"]["name"]: c["provenance"]["figures"] for c in report.configurations}
    return [
        {"hardware": chip, "figure": name, "note": "", **figure}
        for chip, figures in chips.items()
        for name, figure in figures.items()
    ]


def assumptions(report: Report) -> list[Row]:
    """Where models and times come from, and what is assumed."""
    rows = []
    for c in report.configurations:
        said = c["provenance"]
        stated = [("llmviewer", said["llmviewer"]), ("model", said["model"]), ("hardware", said["hardware"])]
        stated += [("times", said["times"]), *(("assumed", text) for text in said["assumed"])]
        stated += [("warning", text) for text in c["warnings"]]
        rows += [{"configuration": c["configuration"], "what": what, "text": text} for what, text in stated]
    return rows


#: The tables by name, in the order of an Excel file's sheets.
TABLES: dict[str, Callable[[Report], list[Row]]] = {
    "summary": summary,
    "points": Report.rows,
    "operators": operators,
    "memory": memory,
    "sources": sources,
    "assumptions": assumptions,
}
