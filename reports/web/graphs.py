"""Charts of the report as Plotly figures, in the colours of a theme and at the width of a screen."""

from __future__ import annotations

from typing import Any

from llmviewer.reports.html.charts import Chart
from llmviewer.reports.html.curves import Sweep
from llmviewer.reports.web.colours import coloured, palette
from llmviewer.reports.web.markup import Piece, block, group, piece

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
