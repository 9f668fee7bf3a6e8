"""A figure of the chips as an axis of a crossover: each configuration with every value of the figure."""

from __future__ import annotations

from collections.abc import Mapping

from llmviewer.api.configuration import Configuration
from llmviewer.core.errors import UserError, quoted
from llmviewer.hardware.hypothetical import alternatives, settings
from llmviewer.result.crossover import FigureAxis
from llmviewer.techniques.registry import TECHNIQUES

#: Context where the rows of a map are a figure.
CONTEXT = "1024"


def figure_axis(text: str, configurations: Mapping[str, Configuration]) -> FigureAxis:
    """The axis of a text such as bandwidth=1TB/s:16TB/s:*2; other settings of the configurations stay.

    text: values in the form of --set.  configurations: by name.

    Raises UserError for an unknown figure, a bad value, and a figure that a configuration sets already.
    """
    changes = alternatives([text]).split(";")
    found = [one for change in changes for one in settings(change)]
    if len({one.name for one in found}) > 1:
        raise UserError(f"over is {quoted(text)}; allowed: one figure of the chip, such as bandwidth=1TB/s:16TB/s:*2")
    return FigureAxis(
        figure=found[0].name,
        values=tuple(one.text for one in found),
        configurations={
            name: [_with_setting(one, change) for change in changes] for name, one in configurations.items()
        },
    )


def _with_setting(one: Configuration, change: str) -> Configuration:
    """The configuration with one more figure of its chip."""
    text = one.techniques["set"]
    return one.with_options({"set": change if text == TECHNIQUES["set"].default else f"{text},{change}"})
