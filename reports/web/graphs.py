"""Charts of the report as Plotly figures, at the width of a screen, in colours of either theme."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from llmviewer.reports.html.charts import Chart
from llmviewer.reports.html.curves import Sweep
from llmviewer.reports.html.page import TEMPLATES
from llmviewer.reports.web.markup import Piece, block, group, piece

SHEET = TEMPLATES / "report.css"
THEMES = ("light", "dark")
#: Bound -> its name in the style sheet, where it differs.
RENAMED = {"link": "link-bound"}


@cache
def sheet() -> str:
    """The report's style sheet, which the viewer shares."""
    return SHEET.read_text(encoding="utf-8")


@cache
def palette(theme: str) -> dict[str, str]:
    """Name of a custom property -> colour, in a theme."""
    roots = re.findall(r":root\s*\{([^}]*)\}", sheet())
    found: dict[str, str] = {}
    for root in roots[: 1 + THEMES.index(theme)]:
        found |= dict(re.findall(r"(--[\w-]+):\s*([^;]+);", root))
    return found


def coloured(value: Any, theme: str) -> Any:
    """A figure, or a part of it, with the theme's colours for their names."""
    if isinstance(value, str):
        return palette(theme).get(value, value) if value.startswith("--") else value
    if isinstance(value, dict):
        return {name: coloured(part, theme) for name, part in value.items()}
    return [coloured(part, theme) for part in value] if isinstance(value, (list, tuple)) else value


def of_bound(bound: str, theme: str, tint: str = "") -> str:
    """The colour of a bound.  tint: "-tint" for the pale one of areas."""
    return palette(theme)[f"--{RENAMED.get(bound, bound)}{tint}"]


#: What the bar of buttons of a graph has: a download as a picture among them.
CONFIG: Any = {
    "responsive": True,
    "displaylogo": False,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "sendChartToCloud"],
    "showSendToCloud": False,
    "plotlyServerURL": "",
}


def graph(chart: Chart, theme: str, identifier: str = "") -> Piece:
    """A chart with its title, description and note.  identifier: id of a graph whose events are read."""
    drawn = {
        "figure": figure(chart, theme),
        "id": identifier or f"graph-{chart.key}",
        "config": {**CONFIG, "toImageButtonOptions": {"filename": f"llmviewer-{chart.key}", "scale": 2}},
        "height": chart.height,
        "label": chart.alt,
    }
    title = [block(piece("title", chart.title))] if chart.title else []
    note = [block(piece("note", chart.note))] if chart.note else []
    return group("chart", *title, drawn, *note)


def legend(found: Sweep, theme: str) -> Piece:
    """The key of the curves of a sweep, which its charts share."""
    return block(piece("legend", [(name, coloured(colour, theme)) for name, colour, _ in found.legend]))


def figure(chart: Chart, theme: str) -> dict[str, Any]:
    """The Plotly figure of a chart."""
    colours = palette(theme)
    ink, paper = colours["--ink"], colours["--paper"]
    axis = {
        "gridcolor": colours["--grid"],
        "zerolinecolor": colours["--line"],
        "linecolor": colours["--line"],
        "ticks": "outside",
        "tickcolor": colours["--line"],
        "automargin": True,
    }
    layout = coloured(chart.layout, theme)
    return {
        "data": coloured(chart.data, theme),
        "layout": {
            "template": {},
            **layout,
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": ink},
            "paper_bgcolor": paper,
            "plot_bgcolor": paper,
            "margin": {"l": 64, "r": 30, "t": 10, "b": 50},
            "modebar": {"orientation": "v", "color": colours["--soft"], "activecolor": ink},
            "separators": ".,",
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
            "hoverlabel": {
                "bgcolor": paper,
                "bordercolor": ink,
                "font": {"color": ink, "size": 13},
                "align": "left",
                "namelength": -1,
            },
            "xaxis": {**axis, **layout.get("xaxis", {})},
            "yaxis": {**axis, **layout.get("yaxis", {})},
        },
    }
