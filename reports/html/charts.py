"""Interactive charts as Plotly's JSON: what bounds the stages, memory against capacity.

Colours are names of the page's custom properties (`--series-0`); its script puts in those of the theme.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import log
from typing import Any, TypeAlias

from llmviewer.reports import format as fmt
from llmviewer.reports.memory_bar import PARTS

Json: TypeAlias = dict[str, Any]
Answers: TypeAlias = list[dict[str, Any]]

#: Colours of series in the page's style sheet, and shapes that tell series apart without colour.
SERIES = 7
DASHES = ("solid", "dash", "dashdot", "dot")
#: Bounds from left to right.
ORDER = ("memory", "compute", "vector", "special", "l2", "link", "host", "disk", "overhead")
GIB = 2.0**30
#: Marks in the bars of memory: what the object of memory calls it, a reader, and Plotly its shape.
LIMITS = (("budget_bytes", "allowed", "line-ns"), ("capacity_bytes", "capacity", "diamond-tall"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """alt: what it shows, for those who do not see it.  table: where the same stands as a table."""

    key: str
    title: str
    alt: str
    table: str
    data: list[Json]
    layout: Json
    note: str = ""
    height: int = 460


def series(at: int) -> str:
    """The colour of the configuration numbered `at`."""
    return f"--series-{at % SERIES}"


def dash(at: int) -> str:
    """Its dashes: another after every round of colours."""
    return DASHES[at // SERIES % len(DASHES)]


def bounds(answers: Answers) -> Chart:
    """What each stage waits for, in shares of its time."""
    stages = [
        (answer["configuration"], name, answer["stages"][name])
        for answer in reversed(answers)
        for name in ("decode", "prefill")
    ]
    some = {bound for _, _, stage in stages for bound, seconds in stage["time_by_bound_s"].items() if seconds}
    found = sorted(some, key=ORDER.index)
    rows = [f"{escape(_short(name))}, {stage}" for name, stage, _ in stages]
    data = []
    for bound in found:
        spent = [stage["time_by_bound_s"].get(bound) or 0.0 for _, _, stage in stages]
        shares = [seconds / stage["time_s"] for seconds, (_, _, stage) in zip(spent, stages, strict=True)]
        words = [f"{bound}: {fmt.duration(s)}, {fmt.share(p)}" for s, p in zip(spent, shares, strict=True)]
        data.append(
            {
                "type": "bar", "orientation": "h", "name": bound, "y": rows, "x": shares, "hovertext": words,
                "hoverinfo": "text+y", "marker": {"color": f"--{bound}", "line": {"color": "--paper", "width": 1}},
                "text": [bound if share > 0.15 else "" for share in shares], "insidetextanchor": "middle",
                "textfont": {"color": "--on-bound"}, "textangle": 0,
            }
        )  # fmt: skip
    return Chart(
        key="bounds",
        title="What the stages wait for",
        alt="Stacked bars, one per configuration and stage: shares of the time by the resource that bounds operators.",
        table="bounds-table",
        data=data,
        layout=_stacked("Share of the stage's time", {"tickformat": ".0%", "range": [0, 1.001]}),
        height=130 + 34 * len(rows),
    )


def memory(answers: Answers) -> Chart:
    """What fills the memory of one device, against its capacity."""
    rows = [escape(_short(answer["configuration"])) for answer in reversed(answers)]
    held = [answer["memory"] for answer in reversed(answers)]
    data: list[Json] = [
        {
            "type": "bar", "orientation": "h", "name": label, "y": rows, "x": [one[field] / GIB for one in held],
            "hovertext": [f"{label}: {fmt.memory(one[field])}" for one in held], "hoverinfo": "text+y",
            "marker": {"color": series(at), "line": {"color": "--paper", "width": 1}},
        }
        for at, (field, label, _, _) in enumerate(PARTS)
    ]  # fmt: skip
    for field, label, symbol in LIMITS:
        line = {"width": 3 if symbol == "line-ns" else 1, "color": "--ink"}
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": label, "y": rows, "x": [one[field] / GIB for one in held],
                "hovertext": [f"{label}: {fmt.memory(one[field])}" for one in held], "hoverinfo": "text+y",
                "marker": {"symbol": symbol, "size": 14, "color": "--ink", "line": line},
            }
        )  # fmt: skip
    return Chart(
        key="memory",
        title="",
        alt="Stacked bars, one per configuration: weights, KV cache, activations and framework in GiB; marks at what "
        "is allowed and at the capacity.",
        table="memory-table",
        data=data,
        layout=_stacked("Memory (GiB)", {"rangemode": "tozero"}),
        height=140 + 34 * len(rows),
    )


def _stacked(title: str, across: Json) -> Json:
    """The layout of stacked bars."""
    return {"barmode": "stack", "xaxis": {"title": {"text": title}, **across}, "yaxis": {"automargin": True}}


def _short(name: str, most: int = 40) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def span(values: list[float]) -> str:
    """`log` where values span more than a decade."""
    positive = [value for value in values if value and value > 0]
    return "log" if positive and log(max(positive) / min(positive)) > log(10.0) else "linear"
