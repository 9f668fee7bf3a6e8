"""From a config.json to a Model: `architectures.py` maps `model_type` to a parser."""

from __future__ import annotations

from llmviewer.models.card import read
from llmviewer.models.load import build, from_fields, load, names
from llmviewer.models.model import Model

__all__ = ["Model", "build", "from_fields", "load", "names", "read"]
