"""The roofline: arithmetic intensity against performance, a roof for every memory and unit, a marker an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.result import Result
from reports.plots import labels
from reports.plots.roofs import roofs as draw_roofs
from reports.plots.style import Style, colour, marker

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Area of the marker of an operator that takes all of a stage's time [point^2], at a text of 9 points.
WHOLE = 900.0
LEAST = 12.0
#: Kinds of operators, in the order of their markers.
KINDS = ("gemm", "attention", "norm", "elementwise", "softmax", "collective", "recurrence", "conv", "embedding", "copy")
#: Operators below this share of a stage's time go without a label.
LABELLED = 0.02
#: Names of one label, and the ratio (as a logarithm) within which operators share one.
NAMED = 2
NEAR = 0.25
#: Below this share they do not stretch the axes.
LEAST_SHARE = 1e-3


def frame(results: Mapping[str, Result]) -> pd.DataFrame:
    """Operators of the first point of every configuration, with their share of the stage's time.

    performance: FLOP/s of a layer's operator.  Those that multiply nothing have no place in the picture.
    """
    import pandas as pd

    rows = []
    for name, result in results.items():
        operators = result.operators()
        operators["configuration"] = name
        spent = operators["time_s"] * operators["layers"]
        operators["share"] = spent / spent.groupby(operators["stage"]).transform("sum")
        operators["performance"] = operators["flops"] / operators["time_s"]
        rows.append(operators[(operators["flops"] > 0) & (operators["arithmetic_intensity"] > 0)])
    return pd.concat(rows, ignore_index=True)


def roofs(results: Mapping[str, Result]) -> pd.DataFrame:
    """The roofs of every chip once."""
    import pandas as pd

    return pd.concat([result.roofs() for result in results.values()], ignore_index=True).drop_duplicates()


def picture(results: Mapping[str, Result], style: Style) -> Figure:
    """The picture of some configurations, each answering one point."""
    return draw(frame(results), roofs(results), style)


def draw(operators: pd.DataFrame, over: pd.DataFrame, style: Style) -> Figure:
    """operators: as of `frame`.  over: as of `roofs`."""
    figure, (axes,) = style.figure()
    main = _main_rates(operators, over)
    across, up = _limits(operators, over)
    axes.set(xscale="log", yscale="log", xlim=across, ylim=up)
    axes.set_xlabel("Arithmetic intensity (FLOP/byte)")
    axes.set_ylabel("Performance (TFLOP/s)")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1e12:g}")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    figure.draw_without_rendering()  # the slope of a diagonal is known once the axes have their place
    points = operators.loc[operators["share"] > LEAST_SHARE, ["arithmetic_intensity", "performance"]].to_numpy(float)
    for at, (chip, rate) in enumerate(main.items()):
        draw_roofs(axes, over[over["hardware"] == chip], (at, len(main), points), rate, style)
    _markers(axes, operators, style)
    labels.place(axes, _labels(operators), style.theme.ink, style.size.text * 0.8)
    return figure


def _main_rates(operators: pd.DataFrame, over: pd.DataFrame) -> dict[str, float]:
    """Of every chip the rate of the matrix units that most FLOPs run on."""
    rates = {}
    for chip, units in over[over["roof"] == "compute"].groupby("hardware", sort=False):
        own = operators[(operators["hardware"] == chip) & (operators["matmul_flops"] > 0)]
        work = (own["matmul_flops"] * own["layers"]).groupby(own["compute_dtype"]).sum()
        dtype = str(work.idxmax()) if len(work) else ""
        named = units[[dtype in what.replace(",", "").split()[1:] for what in units["what"]]]
        rates[str(chip)] = float((named if len(named) else units)["rate"].max())
    return rates


def _limits(operators: pd.DataFrame, over: pd.DataFrame) -> tuple[tuple[float, float], tuple[float, float]]:
    """Decades around the operators and the roofs, the sparsest of marginal work left out."""
    shown = operators[operators["share"] > LEAST_SHARE]
    intensity, performance = shown["arithmetic_intensity"], shown["performance"]
    across = (float(intensity.min()) / 3.0, max(float(intensity.max()) * 3.0, 3e3))
    highest = float(over.loc[over["roof"] == "compute", "rate"].max())
    return across, (float(performance.min()) / 3.0, 2.0 * max(highest, float(performance.max())))


def _markers(axes: Axes, operators: pd.DataFrame, style: Style) -> None:
    """Filled is prefill, hollow is decode; the shape is the kind, the colour the configuration's, or the kind's where
    there is one configuration."""
    alone = operators["configuration"].nunique() == 1
    order = list(dict.fromkeys(operators["configuration"]))
    scale = WHOLE * (style.size.text / 9.0) ** 2
    for (configuration, kind, stage), rows in operators.groupby(["configuration", "kind", "stage"], sort=False):
        at = KINDS.index(kind)
        ink = colour(at if alone else order.index(configuration))
        axes.scatter(
            rows["arithmetic_intensity"],
            rows["performance"],
            s=np.maximum(rows["share"] * scale, LEAST),
            marker=marker(at),
            facecolors=ink if stage == "prefill" else "none",
            edgecolors=ink,
            linewidths=1.2,
            alpha=0.85,
            zorder=4,
        )
    _key(axes, operators, (alone, order), style)


def _key(axes: Axes, operators: pd.DataFrame, series: tuple[bool, list[str]], style: Style) -> None:
    """What shapes, colours and fillings mean."""
    from matplotlib.lines import Line2D

    alone, order = series
    ink, kinds = style.theme.ink, [kind for kind in KINDS if kind in set(operators["kind"])]

    def entry(words: str, at: int, fill: str, edge: str) -> Line2D:
        return Line2D([], [], linestyle="", marker=marker(at), label=words, markerfacecolor=fill, markeredgecolor=edge)

    entries = [entry(k, KINDS.index(k), *[colour(KINDS.index(k)) if alone else ink] * 2) for k in kinds]
    if not alone:
        entries += [entry(name, 0, colour(at), colour(at)) for at, name in enumerate(order)]
    stages = set(operators["stage"])
    entries += [entry(s, 0, ink if s == "prefill" else "none", ink) for s in ("prefill", "decode") if s in stages]
    style.legend(axes, handles=entries, loc="upper left", ncols=2, title_fontsize=style.size.text * 0.9)


def _labels(operators: pd.DataFrame) -> list[labels.Label]:
    """The operators that take most of their stage; those within a hair of each other share a label."""
    shown = operators[operators["share"] > LABELLED].sort_values("share", ascending=False)
    near = [np.round(np.log(shown[name].astype(float)) / NEAR) for name in ("arithmetic_intensity", "performance")]
    return [
        labels.Label(
            words=_joined(list(dict.fromkeys(rows["name"]))),
            x=float(rows["arithmetic_intensity"].iloc[0]),
            y=float(rows["performance"].iloc[0]),
        )
        for _, rows in shown.groupby([shown["configuration"], shown["stage"], *near], sort=False)
    ]


def _joined(names: list[str]) -> str:
    """`gate_proj, up_proj +3`."""
    return ", ".join(names[:NAMED]) + (f" +{len(names) - NAMED}" if len(names) > NAMED else "")
