"""The roofline: arithmetic intensity against performance, a roof for every memory and unit, a marker an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.result import Result
from reports.plots import labels
from reports.plots.roofs import Roofs, keep_clear, keep_off_ridge, words_of_zones
from reports.plots.roofs import draw as draw_roofs
from reports.plots.style import Style, colour, marker

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Area of the marker of an operator that takes all of a stage's time [point^2], at a text of 9 points.
WHOLE = 900.0
LEAST = 12.0
#: How far the axis goes beyond the ridge.
ROOM = 150.0
#: The part of a marker's radius that words keep clear of.
CORE = 0.7
#: Sizes of the workload in titles.
SIZES = {"batch_size": "batch", "input_len": "input", "output_len": "output"}
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


def picture(results: Mapping[str, Result], style: Style, measured: pd.DataFrame | None = None) -> Figure:
    """The picture of some configurations, each answering one point.  measured: as `joined` takes it."""
    operators = frame(results)
    return draw(operators if measured is None else joined(operators, measured), roofs(results), style)


def joined(operators: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """The operators with `measured`, the FLOP/s that measurements make of them.

    measured: rows of `stage`, `name` and `time_s`, of one layer, and `configuration` where there are several.
    """
    keys = [key for key in ("configuration", "stage", "name") if key in measured.columns]
    beside = measured[[*keys, "time_s"]].rename(columns={"time_s": "measured_s"})
    found = operators.merge(beside, how="left", on=keys)
    return found.assign(measured=found["flops"] / found["measured_s"])


def draw(operators: pd.DataFrame, over: pd.DataFrame, style: Style) -> Figure:
    """operators: as of `frame`, or `joined` to measurements.  over: as of `roofs`."""
    from matplotlib.ticker import NullFormatter

    figure, (axes,) = style.figure()
    main = _main_rates(operators, over)
    across, up = _limits(operators, over, max(_ridges(over, main)))
    axes.set(xscale="log", yscale="log", xlim=across, ylim=up)
    axes.set_xlabel("Arithmetic intensity (FLOP/byte)")
    axes.set_ylabel("Performance (TFLOP/s)")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1e12:g}")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())  # measuring words that say nothing takes time
    style.title(figure, _title(operators))
    _markers(figure, operators, style)
    _measured(axes, operators, style)
    style.settle(figure)  # the slope of a diagonal and the room for words are known once the axes have their place
    shown = operators[operators["share"] > LEAST_SHARE]
    space = labels.Space(axes=axes)
    space.take_points(
        shown[["arithmetic_intensity", "performance"]].to_numpy(float),
        np.sqrt(_areas(shown, style) / np.pi) * CORE,
    )
    if "measured" in shown.columns:
        crosses = shown.loc[shown["measured"].notna(), ["arithmetic_intensity", "measured"]].to_numpy(float)
        space.take_points(crosses, np.full(len(crosses), style.size.text * 0.35))
    inks = _inks(operators, style)
    own = [
        Roofs(rows=over[over["hardware"] == chip], main=rate, chips=len(main), ink=inks[chip])
        for chip, rate in main.items()
    ]
    for one in own:
        keep_off_ridge(space, one)
    for one in sorted(own, key=lambda one: one.of("memory")[0][1], reverse=True):
        draw_roofs(space, one, style)
    for one in own:
        keep_clear(space, one)
    labels.place(space, _labels(operators, style), style.size.text * 0.8)
    if len(own) == 1:
        words_of_zones(space, own[0].ridge, style)
    return figure


def _inks(operators: pd.DataFrame, style: Style) -> dict[str, str]:
    """The colour of every chip's roofs: that of its configuration, where it has one of its own among several."""
    chips = operators.drop_duplicates("configuration")["hardware"].astype(str).tolist()
    apart = 1 < len(chips) == len(set(chips))
    return {chip: colour(at) if apart else style.theme.ink for at, chip in enumerate(chips)}


def _title(operators: pd.DataFrame) -> str:
    """What all operators have in common."""
    said = [", ".join(dict.fromkeys(operators[name].astype(str))) for name in ("model", "hardware")]
    sizes = [f"{word} {operators[name].iloc[0]:,}" for name, word in SIZES.items() if operators[name].nunique() == 1]
    return f"{said[0]} on {said[1]}: {', '.join(sizes)}"


def _areas(operators: pd.DataFrame, style: Style) -> npt.NDArray[np.float64]:
    """Of the markers [point^2]."""
    scale = WHOLE * (style.size.text / 9.0) ** 2
    return np.maximum(operators["share"].to_numpy(float) * scale, LEAST)


def _measured(axes: Axes, operators: pd.DataFrame, style: Style) -> None:
    """A cross at what was measured, and a line to what was predicted of it."""
    if "measured" not in operators.columns:
        return
    known = operators[operators["measured"].notna()]
    x, predicted, found = (known[name].to_numpy(float) for name in ("arithmetic_intensity", "performance", "measured"))
    axes.vlines(x, predicted, found, color=style.theme.ink, linewidth=1.0, zorder=5)
    axes.scatter(x, found, marker="x", color=style.theme.ink, s=3.0 * style.size.text, linewidths=1.2, zorder=5)


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


def _ridges(over: pd.DataFrame, main: Mapping[str, float]) -> list[float]:
    """Of every chip where device memory meets its main units [FLOP/byte]."""
    slowest = over[over["roof"] == "memory"].groupby("hardware")["rate"].min()
    return [rate / float(slowest[chip]) for chip, rate in main.items()]


def _limits(
    operators: pd.DataFrame, over: pd.DataFrame, ridge: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Decades around the operators and the roofs, the sparsest of marginal work left out; right of the ridge the
    roofs' names have room."""
    shown = operators[operators["share"] > LEAST_SHARE]
    intensity, performance = shown["arithmetic_intensity"], shown["performance"]
    across = (min(float(intensity.min()) / 3.0, ridge / 30.0), max(float(intensity.max()) * 25.0, ridge * ROOM))
    highest = float(over.loc[over["roof"] == "compute", "rate"].max())
    lowest = min(float(performance.min()) / 3.0, highest / 1e3)
    if "measured" in shown.columns and shown["measured"].notna().any():
        lowest, highest = (
            min(lowest, float(shown["measured"].min()) / 3.0),
            max(highest, float(shown["measured"].max())),
        )
    return across, (lowest, 2.5 * max(highest, float(performance.max())))


def _markers(figure: Figure, operators: pd.DataFrame, style: Style) -> None:
    """Filled is prefill, hollow is decode; the shape is the kind, the colour the configuration's, or the kind's where
    there is one configuration."""
    axes = figure.axes[0]
    alone = operators["configuration"].nunique() == 1
    order = list(dict.fromkeys(operators["configuration"]))
    for key, rows in operators.groupby(["configuration", "kind", "stage"], sort=False):
        configuration, kind, stage = map(str, key)
        at = KINDS.index(kind)
        ink = colour(at if alone else order.index(configuration))
        axes.scatter(
            rows["arithmetic_intensity"],
            rows["performance"],
            s=_areas(rows, style),
            marker=marker(at),
            facecolors=ink if stage == "prefill" else "none",
            edgecolors=ink,
            linewidths=1.2,
            alpha=0.85,
            zorder=4,
        )
    _key(figure, operators, (alone, order), style)


def _key(figure: Figure, operators: pd.DataFrame, series: tuple[bool, list[str]], style: Style) -> None:
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
    if "measured" in operators.columns:
        entries.append(Line2D([], [], linestyle="", marker="x", label="measured", markeredgecolor=ink))
    style.legend_below(figure, entries)


def _labels(operators: pd.DataFrame, style: Style) -> list[labels.Label]:
    """The operators that take most of their stage; those within a hair of each other share a label."""
    shown = operators[operators["share"] > LABELLED].sort_values("share", ascending=False)
    order = list(dict.fromkeys(operators["configuration"]))
    near = [np.round(np.log(shown[name].astype(float)) / NEAR) for name in ("arithmetic_intensity", "performance")]
    return [
        labels.Label(
            words=_joined(list(dict.fromkeys(rows["name"]))),
            x=float(rows["arithmetic_intensity"].iloc[0]),
            y=float(rows["performance"].iloc[0]),
            colour=style.theme.ink if len(order) == 1 else colour(order.index(rows["configuration"].iloc[0])),
        )
        for _, rows in shown.groupby([shown["configuration"], shown["stage"], *near], sort=False)
    ]


def _joined(names: list[str]) -> str:
    """`gate_proj, up_proj +3`."""
    return ", ".join(names[:NAMED]) + (f" +{len(names) - NAMED}" if len(names) > NAMED else "")
