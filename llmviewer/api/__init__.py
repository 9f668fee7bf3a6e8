"""The Python entry points: names and numbers -> results."""

from __future__ import annotations

from llmviewer.api.build import list_engines, list_hardware, list_models, list_techniques, options_of, system
from llmviewer.api.calls import analyze, compare, crossover, request, sweep
from llmviewer.api.configuration import Configuration, configuration, on_devices

__all__ = [
    "Configuration",
    "analyze",
    "compare",
    "configuration",
    "crossover",
    "list_engines",
    "list_hardware",
    "list_models",
    "list_techniques",
    "on_devices",
    "options_of",
    "request",
    "sweep",
    "system",
]
