"""The command that simulates a configuration as `size` did."""

from __future__ import annotations

import shlex
from typing import Any

from llmviewer.planning.choices import Choice
from llmviewer.planning.options import Question


def command(asked: Question, one: Choice) -> str:
    """`llmviewer simulate ...` of one replica under its share of the load; of a trace, of all replicas."""
    words: dict[str, Any] = {"hardware": one.hardware.split("+")[0], **one.options}
    if asked.load.rate is not None:
        words["request_rate"] = repr(one.rate)
    words |= asked.load.words
    options = [part for name, value in words.items() for part in _option(name, value)]
    return shlex.join(["llmviewer", "simulate", asked.model_name, *options])


def _option(name: str, value: Any) -> list[str]:
    """An option as typed; a switch has no value."""
    spelling = "--" + name.replace("_", "-")
    if name == "ignore_fields":
        return [part for field in value for part in ("--ignore-field", str(field))]
    return [spelling] if value is True else [spelling, str(value)]
