"""Names of operators next to their markers in the interactive roofline."""

from __future__ import annotations

from html import escape
from math import log10

from llmviewer.reports.html.charts import Json
from llmviewer.reports.html.operators import Line
from llmviewer.reports.html.roofs import performance

#: Minimum share of a stage's time of a labelled operator, and the distance within which labels merge [decade].
MIN_LABELLED_SHARE, MERGE_DISTANCE = 0.08, 0.12
#: Characters of a label over the width of the chart, and its height [decade]; shift of a label [character].
ACROSS, HIGH, SHIFT = 80.0, 0.25, 2.0


def names(shown: list[Line], across: list[float]) -> list[Json]:
    """Returns labels next to markers, towards the middle and below, where neither roofs nor bounds are.

    across: ends of the axis of intensity [decade].  A label that would cover one of a longer operator is left out.
    """
    notes: list[Json] = []
    taken: list[tuple[float, float, float]] = []
    lines = {line.key: line for line in shown}
    for key, words in _named(shown).items():
        x, y = log10(lines[key].operator["arithmetic_intensity"]), log10(performance(lines[key]))
        side, shift = ("left", 12) if x < sum(across) / 2.0 else ("right", -12)
        place = _place(x, y, side, (len(words) + SHIFT) * (across[1] - across[0]) / ACROSS)
        if any(_overlap(place, other) for other in taken):
            continue
        taken.append(place)
        notes.append(
            {
                "text": words, "x": x, "y": y, "xanchor": side, "yanchor": "middle", "showarrow": False,
                "font": {"color": "--ink", "size": 11}, "xshift": shift, "yshift": -14,
            }
        )  # fmt: skip
    return notes


def _place(x: float, y: float, side: str, width: float) -> tuple[float, float, float]:
    """Left end, right end and height of a label [decade]."""
    return (x, x + width, y) if side == "left" else (x - width, x, y)


def _overlap(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    return one[0] < other[1] and other[0] < one[1] and abs(one[2] - other[2]) < HIGH


def _named(lines: list[Line]) -> dict[str, str]:
    """Returns marker -> label of the operators that take most time, merging close ones."""
    named: dict[str, str] = {}
    places: list[tuple[float, float, str, int]] = []
    for line in sorted(lines, key=lambda line: -line.share):
        x, y = log10(line.operator["arithmetic_intensity"]), log10(performance(line))
        near = [
            at for at, (a, b, _, _) in enumerate(places) if abs(a - x) < MERGE_DISTANCE and abs(b - y) < MERGE_DISTANCE
        ]
        if near:
            a, b, key, more = places[near[0]]
            places[near[0]] = (a, b, key, more + 1)
        elif line.share > MIN_LABELLED_SHARE:
            places.append((x, y, line.key, 0))
            named[line.key] = escape(line.operator["name"])
    return {key: named[key] + (f" +{more}" if more else "") for _, _, key, more in places}
