"""Answers of the public entry point in the form tests read them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import main


def answer(model: str, hardware: str, **options: Any) -> dict[str, Any]:
    """The analysis object of one point, on the data sheet's roofline."""
    return analyze(model, hardware, **options).to_dict()


#: Facts about counts and bounds are stated on the roofline; what calibration changes has tests of its own.
analyze = partial(lv.analyze, efficiency="ideal")


def operators(found: dict[str, Any], stage: str) -> dict[str, dict[str, Any]]:
    """The operators of a stage by name (models with one kind of layer)."""
    listed = found["stages"][stage]["operators"]
    assert len({row["name"] for row in listed}) == len(listed)
    return {row["name"]: row for row in listed}


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a wrong command line gets."""
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line
