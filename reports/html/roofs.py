"""Roofs of the interactive roofline as Plotly traces, which hide with the last of their configurations."""

from __future__ import annotations

from html import escape
from math import log10
from typing import Any

from llmviewer.core.frozen import frozen
from llmviewer.reports import format as fmt
from llmviewer.reports.html.charts import Answers, Json, dash, series
from llmviewer.reports.html.operators import Line

TERA = 1e12
#: Height of the plot and of a name [pixel], for the choice of free places.
PLOT_HEIGHT, NAME_HEIGHT = 390.0, 16.0
#: Invisible markers, which keep a name clear of its roof.
MARGIN = {"size": 5, "opacity": 0}


@frozen
class ChipRoofs:
    """The roofs of one chip.

    number: of its first configuration.  configurations: unit -> names of those that use it; "" for device memory.
    rates: unit -> FLOP/s.  bandwidth: of device memory [byte/s].
    """

    chip: str
    number: int
    configurations: dict[str, list[str]]
    rates: dict[str, float]
    bandwidth: float

    @property
    def top(self) -> float:
        """Rate of the fastest unit in use [FLOP/s]."""
        return max(self.rates.values())

    @property
    def ridge(self) -> float:
        """Intensity at which device memory and the fastest unit meet [FLOP/byte]."""
        return self.top / self.bandwidth


def performance(line: Line) -> float:
    """Returns what an operator attains [TFLOP/s]."""
    return float(line.operator["flops"] / line.operator["time_s"] / TERA)


def chips(answers: Answers, shown: list[Line]) -> list[ChipRoofs]:
    """Returns the roofs of every chip: its memory, and the units that any of its configurations uses."""
    found: dict[str, ChipRoofs] = {}
    for at, answer in enumerate(answers):
        name, bandwidth = str(answer["hardware"]["name"]), answer["roofline"]["bandwidth_bytes_per_s"]
        new = ChipRoofs(chip=name, number=at, configurations={"": []}, rates={}, bandwidth=bandwidth)
        one = found.setdefault(name, new)
        own = _rates(answer, [line for line in shown if line.configuration == answer["configuration"]])
        one.rates.update(own)
        for unit in ("", *own):
            one.configurations.setdefault(unit, []).append(escape(answer["configuration"]))
    return list(found.values())


def _rates(answer: dict[str, Any], lines: list[Line]) -> dict[str, float]:
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


def traces(found: list[ChipRoofs], across: list[float], up: list[float]) -> list[Json]:
    """Returns a line per roof with its name where that has room.  across, up: axis ranges [decade]."""
    places = iter(_places([rate for one in found for rate in one.rates.values()], up))
    drawn = []
    for one in found:
        colour, prefix = (series(one.number), f"{escape(one.chip)} ") if len(found) > 1 else ("--ink", "")
        lowest = 10.0 ** across[0]
        memory = {
            "x": [lowest, one.ridge], "y": [lowest * one.bandwidth / TERA, one.top / TERA], "textposition": "top left",
            "text": ["", f"ridge {fmt.intensity(one.ridge)}" if not prefix else ""],
        }  # fmt: skip
        words = f"{prefix}device memory {fmt.bandwidth(one.bandwidth)}, ridge {fmt.intensity(one.ridge)} FLOP/B"
        drawn.append(_roof(memory, words, colour, (one, "")))
        for unit, rate in one.rates.items():
            words, place = f"{prefix}{unit} {fmt.flops_per_s(rate)}", next(places)
            level = {
                "x": [rate / one.bandwidth, 10.0 ** across[1]], "y": [rate / TERA] * 2,
                "textposition": place or "top left", "text": ["", words if place else ""],
            }  # fmt: skip
            drawn.append(_roof(level, words, colour, (one, unit)))
    return drawn


def _places(rates: list[float], up: list[float]) -> list[str]:
    """Returns where the name of each horizontal roof stands, "" where it would cover another roof or name."""
    scale = PLOT_HEIGHT / (up[1] - up[0])
    heights = [(log10(rate / TERA) - up[0]) * scale for rate in rates]
    taken = [(height - 1.0, height + 1.0) for height in heights]
    found = [""] * len(rates)
    for at in sorted(range(len(rates)), key=lambda at: -heights[at]):
        height = heights[at]
        for side, ends in (
            ("top", (height + 1.0, height + NAME_HEIGHT)),
            ("bottom", (height - NAME_HEIGHT, height - 1.0)),
        ):
            if not any(_overlap(ends, one) for one in taken):
                found[at] = f"{side} left"
                taken.append(ends)
                break
    return found


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _roof(ends: Json, words: str, colour: str, owner: tuple[ChipRoofs, str]) -> Json:
    """Returns one roof.  meta: configurations, with the last of which the page's script hides it."""
    one, unit = owner
    return {
        "type": "scatter", "mode": "lines+markers+text", "marker": MARGIN, **ends, "name": words, "showlegend": False,
        "line": {"color": colour, "width": 1.6, "dash": dash(one.number)},
        "textfont": {"color": colour, "size": 11}, "hovertemplate": words + "<extra></extra>",
        "meta": one.configurations[unit],
    }  # fmt: skip
