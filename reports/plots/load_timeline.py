"""Running and waiting requests, KV cache and prompt tokens over the time of a simulated run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports.plots import load_panels
from llmviewer.reports.plots.style import PALETTE, Style
from llmviewer.simulation.result import Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def picture(made: Simulation, style: Style) -> Figure:
    """Plots means over short times, with their peaks as a band; the warm-up is shaded."""
    outcome = made.outcomes[0]
    end_s = max((float(line.end_s[-1]) for line in outcome.timelines if len(line.end_s)), default=1.0)
    blocks = 0.01 * sum(outcome.blocks)
    panels = (
        ("requests", (("decoding", "decoding", 1.0), ("waiting", "waiting", 1.0))),
        ("KV cache (%)", (("used_blocks", "blocks in use", max(blocks, 1e-12)),)),
    )
    figure, axes = style.figure(len(panels), 1, sharex=True)
    for axis, (label, series) in zip(axes, panels, strict=True):
        for at, (name, words, unit) in enumerate(series):
            _line(axis, load_panels.over_time(outcome.timelines, name, end_s), unit, PALETTE[at], words)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0.0)
        if made.windows[0].start_s:
            axis.axvspan(0.0, made.windows[0].start_s, color=style.theme.faint, alpha=0.35, linewidth=0.0)
    style.legend(axes[0])
    axes[-1].set_xlabel("time (s)")
    axes[-1].set_xlim(0.0, end_s)
    style.title(figure, load_panels.title(made))
    return figure


def _line(axis: Axes, reduced: tuple[np.ndarray, ...], unit: float, colour: str, words: str) -> None:
    edges, mean, largest = reduced
    middle = 0.5 * (edges[1:] + edges[:-1])
    axis.plot(middle, mean / unit, color=colour, linewidth=1.1, label=words)
    axis.fill_between(middle, mean / unit, largest / unit, color=colour, alpha=0.25, linewidth=0.0)
