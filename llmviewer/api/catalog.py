"""Names that models, chips, techniques and engines have in calls and on the command line."""

from __future__ import annotations

from llmviewer import models
from llmviewer.hardware import specs
from llmviewer.techniques.registry import TECHNIQUES
from llmviewer.timing import engine


def list_models() -> list[str]:
    """Names of all models; `llmviewer models show NAME` prints one with its aliases and source."""
    return models.names()


def list_hardware() -> list[str]:
    """Names of all chips; `llmviewer hardware show NAME` prints one with the source of each figure."""
    return specs.names()


def list_techniques() -> list[str]:
    """Names of all techniques, which are keyword arguments of `analyze`; `llmviewer techniques show NAME`."""
    return list(TECHNIQUES)


def list_engines() -> list[str]:
    """Names of all serving engines, for the keyword argument `engine`."""
    return list(engine.names())
