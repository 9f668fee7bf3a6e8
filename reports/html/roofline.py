"""The interactive roofline as Plotly JSON: operators under the roofs of their chips."""

from __future__ import annotations

from html import escape
from math import log10, sqrt
from typing import Any

from llmviewer.core.kinds import Kind
from llmviewer.reports import format as fmt
from llmviewer.reports.html import roofs
from llmviewer.reports.html.charts import Answers, Chart, Json, series
from llmviewer.reports.html.names import names as operator_names
from llmviewer.reports.html.operators import Line
from llmviewer.reports.html.roofs import TERA, performance

#: The x axis extends to this multiple of the ridge, with room for the names of roofs.
MAX_RIDGES = 40.0
#: Room for the names of roofs right of all operators [decade].
NAME_DECADES = 0.5
#: kind of operator -> marker.
SYMBOLS = {kind.value: kind.facts.marker for kind in Kind}
#: Marker diameter of an operator that takes a whole stage, and the minimum [pixel].
FULL_DIAMETER, MIN_DIAMETER = 46.0, 7.0
#: Marker diameter of a bound [pixel].
BOUND_DIAMETER = 7
#: Operators above this share of time extend the axes.
MIN_SHARE = 5e-3


def chart(answers: Answers, lines: list[Line]) -> Chart:
    """Returns the chart of all operators with FLOP, under the roofs of their chips."""
    shown = [line for line in lines if line.operator["flops"] > 0 and line.operator["arithmetic_intensity"]]
    names = [answer["configuration"] for answer in answers]
    chips = roofs.chips(answers, shown)
    across = _reach([line.operator["arithmetic_intensity"] for line in shown if line.share > MIN_SHARE], 4.0)
    across[1] += NAME_DECADES
    across[1] = max(across[1], log10(MAX_RIDGES * max(one.ridge for one in chips)))
    up = _reach([performance(line) for line in shown if line.share > MIN_SHARE], 4.0)
    up[1] = max(up[1], log10(2.5 * max(one.top for one in chips) / TERA))
    data = roofs.traces(chips, across, up)
    for at, answer in enumerate(answers):
        data += _configuration(answer, at, [one for one in shown if one.configuration == names[at]])
    key = _key(names, shown)
    return Chart(
        key="roofline",
        title=title(answers),
        alt=(
            f"Log-log scatter of {len(shown)} operators of {', '.join(names)}: arithmetic intensity in FLOP per byte "
            "against performance in FLOP per second, under the roofs of device memory and compute units."
        ),
        table="operators",
        note=_note(answers),
        data=[*data, *key],
        layout={
            "xaxis": _decades("Arithmetic intensity (FLOP/byte)", across),
            "yaxis": _decades("Performance (TFLOP/s)", up),
            "annotations": operator_names(shown, across) if len(names) == 1 else [],
            "hovermode": "closest",
        },
        height=520 + 22 * (len(key) // 4),
    )


def title(answers: Answers) -> str:
    """Returns models, chips, stages, and what all configurations have in common: techniques, sizes, efficiency."""
    models, chips = (dict.fromkeys(str(one[key]["name"]) for one in answers) for key in ("model", "hardware"))
    first = answers[0]
    techniques = [name for name in first["passes"] if all(name in one["passes"] for one in answers)]
    sizes = [f"{name.partition('_')[0]} {fmt.whole(size)}" for name, size in first["workload"].items()]
    kinds = dict.fromkeys(str(one["efficiency"]["kind"]) for one in answers)
    engines = dict.fromkeys(one["efficiency"].get("engine_title") for one in answers)
    times = [" and ".join(kinds), " and ".join(filter(None, engines))]
    words = ["prefill and decode step", *techniques, *sizes, *filter(None, times)]
    return f"{', '.join(models)} on {', '.join(chips)}: {', '.join(words)}"


def _note(answers: Answers) -> str:
    """Returns the explanation of marks."""
    kinds = {answer["efficiency"]["kind"] for answer in answers}
    filled = "" if kinds == {"ideal"} else "Filled: what the operator attains. "
    return (
        f"{filled}Hollow: the bound of the roofline. A dot in the centre: decode. Shape: kind of operator; area: share "
        "of the stage's time."
    )


def _configuration(answer: dict[str, Any], at: int, lines: list[Line]) -> list[Json]:
    """Returns the marks of one configuration; bounds are drawn first, so that they cover nothing."""
    ideal = answer["efficiency"]["kind"] == "ideal"
    stages = [[line for line in lines if line.stage == stage] for stage in ("prefill", "decode")]
    bounds = [_bounds(own, at) for own in stages if own and not ideal]
    return bounds + [_markers(own, at, "-open" if ideal else "") for own in stages if own]


def _decades(title: str, reach: list[float]) -> Json:
    """Returns a logarithmic axis with a tick per decade."""
    return {"type": "log", "title": {"text": title}, "range": reach, "dtick": 1, "exponentformat": "none"}


def _reach(values: list[float], margin: float) -> list[float]:
    """Returns the axis range around the values [decade]."""
    return [log10(min(values) / margin), log10(max(values) * margin)] if values else [0.0, 1.0]


def _markers(lines: list[Line], at: int, look: str) -> Json:
    """Returns the markers of one configuration and stage; `customdata` is the row of the table.

    look: "" for filled symbols, "-open" for hollow ones.
    """
    stage, name = lines[0].stage, escape(lines[0].configuration)
    dot = "-dot" if stage == "decode" else ""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [line.operator["arithmetic_intensity"] for line in lines],
        "y": [performance(line) for line in lines],
        "customdata": [line.key for line in lines],
        "hovertext": [hover(line) for line in lines],
        "hoverinfo": "text",
        "name": f"{name}, {stage}",
        "legendgroup": name,
        "showlegend": False,
        "marker": {
            "color": series(at),
            "symbol": [SYMBOLS[line.operator["kind"]] + look + dot for line in lines],
            "size": [max(FULL_DIAMETER * sqrt(line.share), MIN_DIAMETER) for line in lines],
            "opacity": 0.85,
            "line": {"width": 2 if look else 1, "color": series(at) if look else "--paper"},
        },
    }


def _bounds(lines: list[Line], at: int) -> Json:
    """Returns hollow marks at the bounds, each joined to what its operator attains."""
    xs, ys, symbols = [], [], []
    for line in lines:
        x, symbol = line.operator["arithmetic_intensity"], SYMBOLS[line.operator["kind"]] + "-open"
        xs += [x, x, None]
        ys += [float(line.operator["flops"] / line.operator["ideal_time_s"] / TERA), performance(line), None]
        symbols += [symbol] * 3
    name = escape(lines[0].configuration)
    return {
        "type": "scatter", "mode": "lines+markers", "x": xs, "y": ys, "hoverinfo": "skip", "showlegend": False,
        "name": f"{name}, {lines[0].stage} bound", "legendgroup": name, "opacity": 0.8,
        "line": {"color": series(at), "width": 0.8},
        "marker": {"color": series(at), "symbol": symbols, "size": [BOUND_DIAMETER, 0, 0] * len(lines)},
    }  # fmt: skip


def _key(names: list[str], shown: list[Line]) -> list[Json]:
    """Returns legend entries of colours and shapes; a configuration's entry toggles all its markers."""
    known = {line.operator["kind"] for line in shown}
    entries = [(escape(name), "circle", series(at), escape(name)) for at, name in enumerate(names) if len(names) > 1]
    entries += [(kind, symbol, "--soft", "kinds") for kind, symbol in SYMBOLS.items() if kind in known]
    return [
        {
            "type": "scatter", "mode": "markers", "x": [None], "y": [None], "name": label, "hoverinfo": "skip",
            "marker": {"symbol": symbol, "size": 9, "color": colour}, "legendgroup": group,
        }
        for label, symbol, colour, group in entries
    ]  # fmt: skip


def hover(line: Line) -> str:
    """Returns name, FLOP, bytes, intensity, time and formulas in Plotly markup."""
    operator = line.operator
    lines = (
        f"<b>{escape(operator['name'])}</b> ({operator['kind']}, {escape(operator['block'])} × {operator['layers']})",
        f"{escape(line.configuration)}, {line.stage}",
        f"{fmt.count(operator['flops'])}FLOP, {fmt.traffic(operator['traffic_bytes'])}, "
        f"{fmt.intensity(operator['arithmetic_intensity'])} FLOP/B",
        f"{fmt.duration(operator['time_s'])} per layer, {operator['bound']}-bound, {fmt.share(line.share)} of stage",
        *((f"kernel-limited: {operator['kernel_limit']}",) if operator["kernel_limit"] else ()),
        *(f"<i>{escape(name)}</i> {escape(text)}" for name, text in line.formulas if name != "Bytes ="),
    )
    return "<br>".join(lines)
