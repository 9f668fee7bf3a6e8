"""Operators on a roofline: markers, measured values, legend, and names of the operators that take most time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.core.kinds import Kind
from llmviewer.reports.plots.style import Style, colour, marker
from llmviewer.reports.plots.ticks import Label

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Marker area of an operator that takes a stage's whole time, and the minimum area [point^2], for 9-point text.
FULL_AREA = 900.0
MIN_AREA = 12.0
#: Area of the mark of a bound [point^2], for 9-point text.
BOUND_AREA = 16.0
#: Area of the dot of decode as a share of its marker, with limits [point^2].
DOT, DOT_AREAS = 0.08, (2.0, 30.0)
#: Kinds of operators, in the order of their markers.
KINDS = tuple(kind.value for kind in Kind)
#: Minimum share of a stage's time of a labelled operator, with one configuration and with several.
MIN_LABELLED_SHARE = (0.02, 0.1)
#: Logarithmic ratio of intensities and rates within which the marks of operators cover each other.
SPOT = 0.12


def draw(figure: Figure, operators: pd.DataFrame, style: Style) -> None:
    """Draws operators: filled at what they attain, hollow at the bound; a dot in the centre means decode.

    Ideal times are bounds themselves and have the hollow mark only.  The shape is the kind of operator, the colour the
    configuration, or the kind if there is only one configuration.
    """
    axes = figure.axes[0]
    single = operators["configuration"].nunique() == 1
    order = list(dict.fromkeys(operators["configuration"]))
    for key, rows in operators.groupby(["configuration", "kind", "stage"], sort=False):
        configuration, kind, stage = map(str, key)
        at = KINDS.index(kind)
        ink = colour(at if single else order.index(configuration))
        bound, dot = rows["efficiency"].iloc[0] == "ideal", ""
        if not bound:
            _bounds(axes, rows, (marker(at), ink), style)
        if stage == "decode":
            dot = ink if bound else style.theme.paper
        _marks(axes, rows, (marker(at), "none" if bound else ink, ink, dot), style)
    _key(figure, operators, (single, order), style)


def _marks(axes: Axes, rows: pd.DataFrame, look: tuple[str, str, str, str], style: Style) -> None:
    """Draws one kind of operator.  look: marker, colours of face, edge and dot ("" for none)."""
    shape, face, edge, dot = look
    x, y, sizes = rows["arithmetic_intensity"], rows["performance"], areas(rows, style)
    axes.scatter(
        x, y, s=sizes, marker=shape, facecolors=face, edgecolors=edge, linewidths=1.2, alpha=0.85, zorder=4,
        label="bound" if face == "none" else "attained",
    )  # fmt: skip
    if dot:
        axes.scatter(x, y, s=np.clip(DOT * sizes, *DOT_AREAS), marker="o", color=dot, linewidths=0.0, zorder=4.1)


def _bounds(axes: Axes, rows: pd.DataFrame, look: tuple[str, str], style: Style) -> None:
    """Draws the hollow marks of the bounds, joined to what the operators attain.  look: marker and colour."""
    shape, ink = look
    x, bound, attained = (
        rows[name].to_numpy(float) for name in ("arithmetic_intensity", "ideal_performance", "performance")
    )
    axes.vlines(x, attained, bound, color=ink, linewidth=0.6, alpha=0.7, zorder=3)
    axes.scatter(
        x, bound, s=bound_area(style), marker=shape, facecolors=style.theme.paper, edgecolors=ink, linewidths=0.8,
        zorder=3.5, label="bound",
    )  # fmt: skip


def bound_area(style: Style) -> float:
    """Returns the area of the mark of a bound [point^2]."""
    return BOUND_AREA * (style.size.text / 9.0) ** 2


def _key(figure: Figure, operators: pd.DataFrame, series: tuple[bool, list[str]], style: Style) -> None:
    """Adds the legend of shapes, colours, stages and bounds."""
    from matplotlib.lines import Line2D

    single, order = series
    ink, kinds = style.theme.ink, [kind for kind in KINDS if kind in set(operators["kind"])]

    def entry(words: str, shape: Any, fill: str, edge: str) -> Line2D:
        return Line2D([], [], linestyle="", marker=shape, label=words, markerfacecolor=fill, markeredgecolor=edge)

    entries = [entry(k, marker(KINDS.index(k)), *[colour(KINDS.index(k)) if single else ink] * 2) for k in kinds]
    if not single:
        entries += [entry(name, "o", colour(at), colour(at)) for at, name in enumerate(order)]
    bounds = set(operators["efficiency"]) == {"ideal"}
    stages = [stage for stage in ("prefill", "decode") if stage in set(operators["stage"])]
    for stage in stages:
        words = f"{stage} (bound)" if bounds else stage
        entries.append(entry(words, "o" if stage == "prefill" else _dotted(), "none" if bounds else ink, ink))
    if not bounds:
        entries.append(entry("bound", "o", style.theme.paper, ink))
        entries[-1].set_markersize(0.5 * style.size.text)
    if "measured" in operators.columns:
        entries.append(Line2D([], [], linestyle="", marker="x", label="measured", markeredgecolor=ink))
    style.legend_below(figure, entries)


def _dotted() -> Any:
    """Returns the marker of decode for the legend: a circle with a small one in its centre."""
    from matplotlib.path import Path

    circle = Path.unit_circle()
    inner = np.asarray(circle.vertices)[::-1] * 0.3
    return Path.make_compound_path(circle, Path(inner, circle.codes))


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
    """Returns the names of the operators that take most of their stage; those on one spot stand below each other."""
    order = list(dict.fromkeys(operators["configuration"]))
    least = MIN_LABELLED_SHARE[len(order) > 1]
    shown = operators[operators["share"] > least].sort_values("share", ascending=False)
    spot = [np.round(np.log(shown[one].astype(float)) / SPOT) for one in ("arithmetic_intensity", "performance")]
    return [
        Label(
            words="\n".join(dict.fromkeys(rows["name"])),
            x=float(rows["arithmetic_intensity"].iloc[0]),
            y=float(rows["performance"].iloc[0]),
            colour=style.theme.ink if len(order) == 1 else colour(order.index(rows["configuration"].iloc[0])),
            radius=float(np.sqrt(areas(rows, style).max() / np.pi)),
        )
        for _, rows in shown.groupby([shown["configuration"], shown["stage"], *spot], sort=False)
    ]
