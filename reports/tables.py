"""A report as named tables for CSV and Excel; the first column is the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from llmviewer.reports.report import Report

Row: TypeAlias = dict[str, Any]


def summary(report: Report) -> list[Row]:
    """Returns the metrics of every configuration."""
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
    """Returns the operators of both stages, with figures of one layer."""
    return [
        {"configuration": c["configuration"], "stage": name, **operator}
        for c in report.configurations
        for name, stage in c["stages"].items()
        for operator in stage["operators"]
    ]


def memory(report: Report) -> list[Row]:
    """Returns memory use and limits of one device."""
    return [{"configuration": c["configuration"], **c["memory"]} for c in report.configurations]


def sources(report: Report) -> list[Row]:
    """Returns every chip figure with its source."""
    chips = {c["hardware"]["name"]: c["provenance"]["figures"] for c in report.configurations}
    return [
        {"hardware": chip, "figure": name, "note": "", **figure}
        for chip, figures in chips.items()
        for name, figure in figures.items()
    ]


def assumptions(report: Report) -> list[Row]:
    """Returns the provenance of models and times, assumptions and warnings."""
    rows = []
    for c in report.configurations:
        provenance = c["provenance"]
        stated = [(key, provenance[key]) for key in ("llmviewer", "model", "hardware")]
        stated += [("times", provenance["times"]), *(("assumed", text) for text in provenance["assumed"])]
        stated += [("warning", text) for text in c["warnings"]]
        rows += [{"configuration": c["configuration"], "what": subject, "text": text} for subject, text in stated]
    return rows


#: Tables by name, in the order of sheets of an Excel file.
TABLES: dict[str, Callable[[Report], list[Row]]] = {
    "summary": summary,
    "points": Report.rows,
    "operators": operators,
    "memory": memory,
    "sources": sources,
    "assumptions": assumptions,
}
