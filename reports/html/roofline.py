"""The interactive roofline as Plotly JSON: operators under the roofs of their chips."""

from __future__ import annotations

from html import escape
from math import log10, sqrt
from typing import Any

from llmviewer.core.kinds import Kind
from llmviewer.reports import format as fmt
from llmviewer.reports.html.charts import Answers, Chart, Json, dash, series
from llmviewer.reports.html.operators import Line

#: The x axis extends to this multiple of the ridge, with room for the names of roofs.
MAX_RIDGES = 40.0
#: kind of operator -> marker.
SYMBOLS = {kind.value: kind.facts.marker for kind in Kind}
#: Marker diameter of an operator that takes a whole stage, and the minimum [pixel].
FULL_DIAMETER, MIN_DIAMETER = 46.0, 7.0
#: Minimum share of a stage's time of a labelled operator, and the distance within which labels merge [decade].
MIN_LABELLED_SHARE, MERGE_DISTANCE = 0.08, 0.12
#: Operators above this share of time extend the axes.
MIN_SHARE = 5e-3
TERA = 1e12


def chart(answers: Answers, lines: list[Line]) -> Chart:
    """Returns the chart of all operators with FLOP, under the roofs of their chips."""
    shown = [line for line in lines if line.operator["flops"] > 0 and line.operator["arithmetic_intensity"]]
    names = [answer["configuration"] for answer in answers]
    across = _reach([line.operator["arithmetic_intensity"] for line in shown if line.share > MIN_SHARE], 4.0)
    across[1] = max(
        across[1], log10(MAX_RIDGES * max(answer["roofline"]["ridge_flops_per_byte"] for answer in answers))
    )
    data, notes = _roofs(answers, shown, across)
    for at, name in enumerate(names):
        for stage in ("prefill", "decode"):
            own = [one for one in shown if (one.configuration, one.stage) == (name, stage)]
            if own:
                data.append(_markers(own, at, stage))
    key = _key(names, shown)
    if len(names) == 1:
        notes += _names(shown, sum(across) / 2.0)
    up = _reach([_performance(line) for line in shown if line.share > MIN_SHARE], 4.0)
    up[1] = max(up[1], log10(2.5 * max(max(trace["y"]) for trace in data if trace.get("mode") == "lines")))
    return Chart(
        key="roofline",
        title="",
        alt=(
            f"Log-log scatter of {len(shown)} operators of {', '.join(names)}: arithmetic intensity in FLOP per byte "
            "against performance in FLOP per second, under the roofs of device memory and compute units."
        ),
        table="operators",
        note="Filled: prefill; hollow: decode. Shape: kind of operator; area: share of the stage's time.",
        data=[*data, *key],
        layout={
            "xaxis": _decades("Arithmetic intensity (FLOP/byte)", across),
            "yaxis": _decades("Performance (TFLOP/s)", up),
            "annotations": notes,
            "hovermode": "closest",
        },
        height=520 + 22 * (len(key) // 4),
    )


def _decades(title: str, reach: list[float]) -> Json:
    """Returns a logarithmic axis with a tick per decade."""
    return {"type": "log", "title": {"text": title}, "range": reach, "dtick": 1, "exponentformat": "none"}


def _reach(values: list[float], margin: float) -> list[float]:
    """Returns the axis range around the values [decade]."""
    return [log10(min(values) / margin), log10(max(values) * margin)] if values else [0.0, 1.0]


def _performance(line: Line) -> float:
    return float(line.operator["flops"] / line.operator["time_s"] / TERA)


def _roofs(answers: Answers, shown: list[Line], across: list[float]) -> tuple[list[Json], list[Json]]:
    """Returns per chip the roofs of its memory and of the units in use, and their labels."""
    traces, notes = [], []
    chips = {answer["hardware"]["name"]: (at, answer) for at, answer in reversed(list(enumerate(answers)))}
    for chip, (at, answer) in reversed(chips.items()):
        colour = series(at) if len(chips) > 1 else "--ink"
        bandwidth = answer["roofline"]["bandwidth_bytes_per_s"]
        rates = _rates(answer, chip, [line for line in shown if _on(line, answers) == chip])
        top, lowest = max(rates.values()), 10.0 ** across[0]
        memory = {"x": [lowest, top / bandwidth], "y": [lowest * bandwidth / TERA, top / TERA]}
        label = f"{escape(chip)} device memory {fmt.bandwidth(bandwidth)}"
        traces.append(_roof(memory, label, colour, at))
        for units, rate in rates.items():
            level = {"x": [rate / bandwidth, 10.0 ** across[1]], "y": [rate / TERA] * 2}
            words = f"{escape(chip)} {units} {fmt.flops_per_s(rate)}"
            traces.append(_roof(level, words, colour, at))
            notes.append(_words(words, across[1], log10(rate / TERA), colour))
        ridge = fmt.intensity(top / bandwidth)
        corner = _words(f"ridge {ridge}", log10(top / bandwidth), log10(top / TERA), colour)
        notes.append(corner | {"xanchor": "right", "yanchor": "bottom", "xshift": -6})  # no roof is to the left of it
    return traces, notes


def _on(line: Line, answers: Answers) -> str:
    return next(str(a["hardware"]["name"]) for a in answers if a["configuration"] == line.configuration)


def _rates(answer: dict[str, Any], chip: str, lines: list[Line]) -> dict[str, float]:
    """Returns the units that the operators run on: name -> rate [FLOP/s]."""
    hardware = answer["hardware"]
    found: dict[str, float] = {}
    for line in lines:
        dtype = line.operator["compute_dtype"]
        if line.operator["matmul_flops"] and dtype in hardware["peak_flops_per_s"]:
            found[f"tensor {dtype}"] = hardware["peak_flops_per_s"][dtype]
        elif not line.operator["matmul_flops"] and "fp32" in hardware["vector_flops_per_s"]:
            found["vector fp32"] = hardware["vector_flops_per_s"]["fp32"]
    return found or {answer["roofline"]["compute_dtype"]: answer["roofline"]["peak_flops_per_s"]}


def _roof(ends: Json, words: str, colour: str, at: int) -> Json:
    line = {"color": colour, "width": 1.6, "dash": dash(at)}
    return {
        "type": "scatter", "mode": "lines", **ends, "line": line, "name": words, "showlegend": False,
        "hovertemplate": words + "<extra></extra>",
    }  # fmt: skip


def _words(text: str, x: float, y: float, colour: str) -> Json:
    """Returns a label just above (x, y) [decade]."""
    return {
        "text": text, "x": x, "y": y, "xanchor": "right", "yanchor": "bottom", "showarrow": False,
        "font": {"color": colour, "size": 11},
    }  # fmt: skip


def _markers(lines: list[Line], at: int, stage: str) -> Json:
    """Returns the markers of one configuration and stage; `customdata` is the row of the table."""
    filled = stage == "prefill"
    symbols = [SYMBOLS[line.operator["kind"]] + ("" if filled else "-open") for line in lines]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [line.operator["arithmetic_intensity"] for line in lines],
        "y": [_performance(line) for line in lines],
        "customdata": [line.key for line in lines],
        "hovertext": [hover(line) for line in lines],
        "hoverinfo": "text",
        "name": f"{escape(lines[0].configuration)}, {stage}",
        "legendgroup": escape(lines[0].configuration),
        "showlegend": False,
        "marker": {
            "color": series(at),
            "symbol": symbols,
            "size": [max(FULL_DIAMETER * sqrt(line.share), MIN_DIAMETER) for line in lines],
            "opacity": 0.85,
            "line": {"width": 1 if filled else 2, "color": "--paper" if filled else series(at)},
        },
    }


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


def _names(shown: list[Line], middle: float) -> list[Json]:
    """Returns labels next to markers, towards the middle: below prefill markers, above decode markers."""
    notes = []
    for stage, shift in (("prefill", -14), ("decode", 14)):
        lines = {line.key: line for line in shown if line.stage == stage}
        for key, words in _named(list(lines.values())).items():
            line = lines[key]
            x, y = log10(line.operator["arithmetic_intensity"]), log10(_performance(line))
            side = "left" if x < middle else "right"
            note = _words(words, x, y, "--ink") | {"xanchor": side, "yanchor": "middle", "yshift": shift}
            notes.append(note | {"xshift": 12 if side == "left" else -12})
    return notes


def _named(lines: list[Line]) -> dict[str, str]:
    """Returns marker -> label of the operators that take most time, merging close ones."""
    named: dict[str, str] = {}
    places: list[tuple[float, float, str, int]] = []
    for line in sorted(lines, key=lambda line: -line.share):
        x, y = log10(line.operator["arithmetic_intensity"]), log10(_performance(line))
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


def hover(line: Line) -> str:
    """Returns name, FLOP, bytes, intensity, time and formulas in Plotly markup."""
    operator = line.operator
    lines = (
        f"<b>{escape(operator['name'])}</b> ({operator['kind']}, {escape(operator['block'])} × {operator['layers']})",
        f"{escape(line.configuration)}, {line.stage}",
        f"{fmt.count(operator['flops'])}FLOP, {fmt.traffic(operator['traffic_bytes'])}, "
        f"{fmt.intensity(operator['arithmetic_intensity'])} FLOP/B",
        f"{fmt.duration(operator['time_s'])} per layer, {operator['bound']}-bound, {fmt.share(line.share)} of stage",
        *(f"<i>{escape(name)}</i> {escape(text)}" for name, text in line.formulas if name != "Bytes ="),
    )
    return "<br>".join(lines)
