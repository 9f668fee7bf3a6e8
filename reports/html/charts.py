"""Interactive charts as Plotly JSON: time by bound, memory against capacity.

Colours are names of CSS custom properties (`--series-0`), which the page's script replaces by those of the theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, TypeAlias

from llmviewer.core.frozen import frozen
from llmviewer.reports import format as fmt
from llmviewer.reports.memory_bar import PARTS

Json: TypeAlias = dict[str, Any]
Answers: TypeAlias = list[dict[str, Any]]

#: Number of series colours in the style sheet, and dashes that distinguish series without colour.
SERIES = 7
DASHES = ("solid", "dash", "dashdot", "dot")
#: Bounds in the order of bar segments.
ORDER = ("memory", "compute", "vector", "special", "l2", "link", "host", "disk", "overhead")
GIB = 2.0**30
#: Numbers of a logarithmic axis in full; without a format Plotly writes 20 and 50 as 2 and 5, in small figures.
IN_FULL: Json = {"tickformat": ",.6~r"}
#: Ticks of a logarithmic axis at 1, 2 and 5 of every decade; at every digit they overlap.
FEW: Json = {"dtick": "D2", **IN_FULL}
#: Marks in memory bars: field of the memory object, label, Plotly symbol.
LIMITS = (("budget_bytes", "budget", "line-ns"), ("capacity_bytes", "capacity", "diamond-tall"))


@frozen
class Chart:
    """One chart of the page.  alt: text description.  table: id of the table with the same data."""

    key: str
    title: str
    alt: str
    table: str
    data: list[Json]
    layout: Json
    note: str = ""
    height: int = 460


def series(at: int) -> str:
    """Returns the colour of configuration `at`."""
    return f"--series-{at % SERIES}"


def dash(at: int) -> str:
    """Returns the dashes of configuration `at`, which change when colours repeat."""
    return DASHES[at // SERIES % len(DASHES)]


def bounds(answers: Answers) -> Chart:
    """Returns the chart of each stage's time by bound."""
    stages = [
        (answer["configuration"], name, answer["stages"][name])
        for answer in reversed(answers)
        for name in ("decode", "prefill")
        if answer["stages"][name]["operators"]  # an encoder decodes nothing
    ]
    nonzero = {bound for _, _, stage in stages for bound, seconds in stage["time_by_bound_s"].items() if seconds}
    found = sorted(nonzero, key=ORDER.index)
    short = short_names([answer["configuration"] for answer in answers])
    rows = [escape(f"{short[name]}, {stage}" if len(answers) > 1 else stage) for name, stage, _ in stages]
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
        title="Time by bound",
        alt="Stacked bars, one per configuration and stage: shares of the time by the resource that bounds it.",
        table="bounds-table",
        data=data,
        layout=_stacked("Share of the time", {"tickformat": ".0%", "range": [0, 1.001]}),
        height=130 + 34 * len(rows),
    )


def memory(answers: Answers) -> Chart:
    """Returns the chart of one device's memory against its capacity."""
    short = short_names([answer["configuration"] for answer in answers])
    rows = [escape(short[answer["configuration"]]) for answer in reversed(answers)]
    memories = [answer["memory"] for answer in reversed(answers)]
    data: list[Json] = [
        {
            "type": "bar", "orientation": "h", "name": label, "y": rows, "x": [one[field] / GIB for one in memories],
            "hovertext": [f"{label}: {fmt.memory(one[field])}" for one in memories], "hoverinfo": "text+y",
            "marker": {"color": series(at), "line": {"color": "--paper", "width": 1}},
        }
        for at, (field, label, _, _) in enumerate(PARTS)
    ]  # fmt: skip
    for field, label, symbol in LIMITS:
        line = {"width": 3 if symbol == "line-ns" else 1, "color": "--ink"}
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": label, "y": rows,
                "x": [one[field] / GIB for one in memories],
                "hovertext": [f"{label}: {fmt.memory(one[field])}" for one in memories], "hoverinfo": "text+y",
                "marker": {"symbol": symbol, "size": 14, "color": "--ink", "line": line},
            }
        )  # fmt: skip
    return Chart(
        key="memory",
        title="",
        alt="Stacked bars, one per configuration: weights, KV cache, activations and framework in GiB; marks at the "
        "budget and at the capacity.",
        table="memory-table",
        data=data,
        layout=_stacked("Memory (GiB)", {"rangemode": "tozero"}),
        height=140 + 34 * len(rows),
    )


def _stacked(title: str, across: Json) -> Json:
    """Returns the layout of stacked bars."""
    return {"barmode": "stack", "xaxis": {"title": {"text": title}, **across}, "yaxis": {"automargin": True}}


def short_names(names: Sequence[str], limit: int = 32) -> dict[str, str]:
    """Returns name -> at most about `limit` characters of it, a number among them where two would be the same."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        head = limit // 2
        short = name if len(name) <= limit else f"{name[:head]}…{name[head + 1 - limit :]}"
        same = sum(other == short or other.startswith(f"{short} (") for other in found.values())
        found[name] = f"{short} ({same + 1})" if same else short
    return found
