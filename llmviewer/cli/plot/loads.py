"""Options of a simulated load among those of `llmviewer plot`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmviewer.core.errors import UserError, quoted
from llmviewer.reports.plots import PlotData, PlotKind
from llmviewer.simulation.call import simulate
from llmviewer.simulation.options import LOAD
from llmviewer.simulation.result import Simulation


def separated(kind: PlotKind, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the load, and all others.  Raises UserError for a load that the kind does not take."""
    load = {name: value for name, value in options.items() if name in LOAD}
    others = {name: value for name, value in options.items() if name not in LOAD}
    if kind.data is not PlotData.LOAD:
        for name, value in load.items():
            if value is not None:
                raise UserError(f"{name} is {quoted(value)}; this plot does not take it")
    return load, others


def simulated(options: Mapping[str, Any], load: Mapping[str, Any], sizes: Mapping[str, str]) -> Simulation:
    """The simulation of a configuration; its options are those of a server.  Raises UserError."""
    for name in ("batch_size", "bandwidth"):
        if sizes[name]:
            raise UserError(f"{name} is {quoted(sizes[name])}; this plot does not take it")
    lengths: dict[str, Any] = {name: sizes[name] for name in ("input_len", "output_len") if sizes[name]}
    return simulate(**options, **load, **lengths)


def unused(kind: PlotKind, load: Mapping[str, Any]) -> Iterator[str]:
    """A line for every stated option of a load that no picture of the kind shows."""
    if (load.get("replications") or 1) > 1:
        yield "--replications: a picture shows the first, not used"
    if load.get("find_rate") and kind.module == "latency_rate":
        yield "--find-rate: this plot goes up to the highest rate without it, not used"
