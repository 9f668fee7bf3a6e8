"""Helpers that return results of the public entry point."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import main


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
