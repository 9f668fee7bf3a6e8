"""From a config.json to a Model.  `ARCHITECTURES` maps `model_type` to the parser of its family."""

from __future__ import annotations

from llmviewer.models.load import load, names, read
from llmviewer.models.model import Model

__all__ = ["Model", "load", "names", "read"]
