"""Operators on a roofline: markers, measured values, legend, and names of the operators that take most time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.core.kinds import Kind
from llmviewer.reports.plots.labels import Label
from llmviewer.reports.plots.style import Style, colour, marker

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Marker area of an operator that takes a stage's whole time, and the minimum area [point^2], for 9-point text.
FULL_AREA = 900.0
MIN_AREA = 12.0
#: Kinds of operators, in the order of their markers.
KINDS = tuple(kind.value for kind in Kind)
#: Minimum share of a stage's time of a labelled operator.
MIN_LABELLED_SHARE = 0.02
#: Maximum names per label, and the logarithmic ratio within which operators share a label.
MAX_NAMES = 2
MERGE_LOG_RATIO = 0.25


def draw(figure: Figure, operators: pd.DataFrame, style: Style) -> None:
    """Draws markers: filled for prefill, hollow for decode; the shape is the kind of operator.

    The colour is the configuration, or the kind if there is only one configuration.
    """
    axes = figure.axes[0]
    single = operators["configuration"].nunique() == 1
    order = list(dict.fromkeys(operators["configuration"]))
    for key, rows in operators.groupby(["configuration", "kind", "stage"], sort=False):
        configuration, kind, stage = map(str, key)
        at = KINDS.index(kind)
        ink = colour(at if single else order.index(configuration))
        axes.scatter(
            rows["arithmetic_intensity"],
            rows["performance"],
            s=areas(rows, style),
            marker=marker(at),
            facecolors=ink if stage == "prefill" else "none",
            edgecolors=ink,
            linewidths=1.2,
            alpha=0.85,
            zorder=4,
        )
    _key(figure, operators, (single, order), style)


def _key(figure: Figure, operators: pd.DataFrame, series: tuple[bool, list[str]], style: Style) -> None:
    """Adds the legend of shapes, colours and fills."""
    from matplotlib.lines import Line2D

    single, order = series
    ink, kinds = style.theme.ink, [kind for kind in KINDS if kind in set(operators["kind"])]

    def entry(words: str, at: int, fill: str, edge: str) -> Line2D:
        return Line2D([], [], linestyle="", marker=marker(at), label=words, markerfacecolor=fill, markeredgecolor=edge)

    entries = [entry(k, KINDS.index(k), *[colour(KINDS.index(k)) if single else ink] * 2) for k in kinds]
    if not single:
        entries += [entry(name, 0, colour(at), colour(at)) for at, name in enumerate(order)]
    stages = set(operators["stage"])
    entries += [entry(s, 0, ink if s == "prefill" else "none", ink) for s in ("prefill", "decode") if s in stages]
    if "measured" in operators.columns:
        entries.append(Line2D([], [], linestyle="", marker="x", label="measured", markeredgecolor=ink))
    style.legend_below(figure, entries)


def areas(operators: pd.DataFrame, style: Style) -> npt.NDArray[np.float64]:
    """Returns the marker areas [point^2]."""
    scale = FULL_AREA * (style.size.text / 9.0) ** 2
    return np.maximum(operators["share"].to_numpy(float) * scale, MIN_AREA)


def measured(axes: Axes, operators: pd.DataFrame, style: Style) -> None:
    """Draws a cross at each measured value and a line to its prediction."""
    if "measured" not in operators.columns:
        return
    known = operators[operators["measured"].notna()]
    x, predicted, found = (known[name].to_numpy(float) for name in ("arithmetic_intensity", "performance", "measured"))
    axes.vlines(x, predicted, found, color=style.theme.ink, linewidth=1.0, zorder=5)
    axes.scatter(x, found, marker="x", color=style.theme.ink, s=3.0 * style.size.text, linewidths=1.2, zorder=5)


def names(operators: pd.DataFrame, style: Style) -> list[Label]:
    """Returns labels of the operators that take most of their stage; close ones share a label."""
    shown = operators[operators["share"] > MIN_LABELLED_SHARE].sort_values("share", ascending=False)
    order = list(dict.fromkeys(operators["configuration"]))
    near = [
        np.round(np.log(shown[name].astype(float)) / MERGE_LOG_RATIO)
        for name in ("arithmetic_intensity", "performance")
    ]
    return [
        Label(
            words=_joined(list(dict.fromkeys(rows["name"]))),
            x=float(rows["arithmetic_intensity"].iloc[0]),
            y=float(rows["performance"].iloc[0]),
            colour=style.theme.ink if len(order) == 1 else colour(order.index(rows["configuration"].iloc[0])),
        )
        for _, rows in shown.groupby([shown["configuration"], shown["stage"], *near], sort=False)
    ]


def _joined(names: list[str]) -> str:
    """Returns `gate_proj, up_proj +3`."""
    return ", ".join(names[:MAX_NAMES]) + (f" +{len(names) - MAX_NAMES}" if len(names) > MAX_NAMES else "")
