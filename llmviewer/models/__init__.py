"""From a config.json to a Model: `architectures.py` maps `model_type` to a parser."""

from __future__ import annotations

from llmviewer.models.load import from_fields, load, names, read
from llmviewer.models.model import Model

__all__ = ["Model", "from_fields", "load", "names", "read"]
