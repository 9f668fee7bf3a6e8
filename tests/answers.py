"""Helpers that return results of the public entry point."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import llmviewer as lv
from llmviewer import api
from llmviewer.analysis.system import System
from llmviewer.cli import main
from llmviewer.hardware import specs


def answer(model: str, hardware: str, **options: Any) -> dict[str, Any]:
    """The JSON object of one point, with ideal times."""
    return analyze(model, hardware, **options).to_dict()


#: Counts and bounds are tested with ideal times; calibrated times have separate tests.
analyze = partial(lv.analyze, efficiency="ideal")


def operators(found: dict[str, Any], stage: str) -> dict[str, dict[str, Any]]:
    """The operators of a stage by name (models with one kind of layer)."""
    listed = found["stages"][stage]["operators"]
    assert len({row["name"] for row in listed}) == len(listed)
    return {row["name"]: row for row in listed}


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one-line error of a wrong command line."""
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def roofline_of(chip: str, **options: Any) -> System:
    """The system of a chip on the data sheet's roofline."""
    return api.system(specs.load(chip), api.options_of({"efficiency": "ideal", **options}))


def chip_for(engine: str) -> str:
    """A chip that an engine runs on: an H100, or a Mac of engines for Macs alone."""
    from llmviewer.timing.engine import load

    return "m4-max" if "Apple" in load(engine).makers else "h100-sxm"
