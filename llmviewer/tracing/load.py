"""Loading a model for --trace-model: the config as ever, the parts from a traced pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted
from llmviewer.models.architectures import ARCHITECTURES
from llmviewer.models.card import Card, read
from llmviewer.models.config import Config
from llmviewer.models.load import chosen_dtype, name_of
from llmviewer.models.model import Model
from llmviewer.models.wrappers import text_fields
from llmviewer.tracing.traced import traced


def load_traced(given: object, dtype: str) -> Model:
    """The model of a name, a path or the fields of a config.json, read from a traced pass.  Raises UserError.

    given: as for a model with a parser.  dtype: as in `models.load`.  A model_type with a parser is traced as well,
    since it was asked for, and a note says that the parser was not used.
    """
    if isinstance(given, Mapping) and given:
        card = Card(name=name_of(given), config=given)
    else:
        card = read(arguments.path_or_name("model", given))
    fields = card.config
    text = text_fields(fields)
    if text is not fields:
        raise UserError(f"model {quoted(card.name)}: --trace-model reads language models, not a multimodal config")
    chosen, notes = chosen_dtype(Config(fields, card.name), dtype)
    model = traced(fields, card.name, chosen)
    model_type = fields.get("model_type")
    if model_type in ARCHITECTURES:
        notes = (*notes, f"model_type {quoted(model_type)} has a parser, which --trace-model leaves unused")
    return card.finish(replace(model, source=card.source, notes=(*notes, *model.notes)))
