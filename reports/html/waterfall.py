"""The waterfall from one time to another as Plotly JSON: one step per factor."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from llmviewer.language.quantity import LATENCIES
from llmviewer.reports import format as fmt
from llmviewer.reports.html.charts import Chart, short_names

End = tuple[str, float]
#: Characters of the names of both ends below their bars.
MOST_CHARACTERS = 24
#: Milliseconds per second.
MS = 1e3


def chart(first: End, last: End, steps: Mapping[str, float], metric: str) -> Chart:
    """Returns the chart of the steps between two times [s], each with its name."""
    short = short_names([first[0], last[0]], MOST_CHARACTERS)
    names = [f"A: {escape(short[first[0]])}", *map(escape, steps), f"B: {escape(short[last[0]])}"]
    title = LATENCIES[metric].label
    values = [first[1], *steps.values(), last[1]]
    signs = ["", *("+" if step >= 0.0 else "−" for step in steps.values()), ""]
    return Chart(
        key="waterfall",
        title=f"{title}, from one configuration to the other",
        alt=f"Waterfall from {first[0]} to {last[0]}: " + ", ".join(steps),
        table="why",
        data=[
            {
                "type": "waterfall",
                "x": names,
                "y": [value * MS for value in values],
                "measure": ["absolute", *["relative"] * len(steps), "total"],
                "text": [f"{sign}{fmt.duration(abs(value))}" for sign, value in zip(signs, values, strict=True)],
                "textposition": "outside",
                "cliponaxis": False,
                "hoverinfo": "x+text",
                "increasing": {"marker": {"color": "--series-1"}},
                "decreasing": {"marker": {"color": "--series-2"}},
                "totals": {"marker": {"color": "--series-0"}},
                "connector": {"line": {"color": "--soft", "width": 1}},
            }
        ],
        layout={
            "showlegend": False,
            "xaxis": {"automargin": True},
            "yaxis": {"title": {"text": f"{title} (ms)"}, "rangemode": "tozero"},
        },
        height=420,
    )
