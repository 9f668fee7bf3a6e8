"""Fields of a config.json that a user changes: `--model-set num_key_value_heads=4,num_hidden_layers=48`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmviewer.core.errors import UserError, printable, quoted
from llmviewer.models.aliases import merged
from llmviewer.models.card import Card
from llmviewer.models.config import QUANTIZATION_FIELDS
from llmviewer.models.model import Model

OPTION = "model_set"
#: A comma that begins another field; those within a list do not.
BETWEEN = re.compile(r",(?=\s*[\w.]+\s*=)")


def changes(text: str) -> dict[str, Any]:
    """Field -> value of `name=value,...`; a value is JSON, or a word.  Raises UserError."""
    found: dict[str, Any] = {}
    for part in BETWEEN.split(text):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not re.fullmatch(r"\w+(\.\w+)*", name) or not equals or not value:
            raise UserError(f"{OPTION} is {quoted(text)}; expected fields of config.json: num_key_value_heads=4")
        if name in found:
            raise UserError(f"{OPTION} has {printable(name)} twice")
        if name in QUANTIZATION_FIELDS:
            raise UserError(f"{OPTION} does not change {name}; number formats are those of --quantization")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def with_changes(card: Card, changed: Mapping[str, Any]) -> Card:
    """The Card with the fields changed and no published size of its own; a note says what differs."""
    config = dict(card.config)
    told = []
    for name, value in changed.items():
        path = name.split(".")
        told.append(f"{name} {json.dumps(_value(config, path))} -> {json.dumps(value)}")
        config = _with(config, path, value)
    note = f"changed by {OPTION}: {', '.join(map(printable, told))}"

    def finish(model: Model) -> Model:
        finished = card.finish(model)
        return replace(finished, notes=(note, *finished.notes))

    return replace(card, config=config, published={}, is_known=False, compared="", finish=finish)


def _value(config: Mapping[str, Any], path: list[str]) -> Any:
    """The value of a field, in the section of the language model where it stands there; None if absent."""
    text = config.get("text_config")
    value = (text if isinstance(text, Mapping) and path[0] not in config else config).get(path[0])
    return _value(value, path[1:]) if path[1:] and isinstance(value, Mapping) else value


def _with(config: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    if len(path) == 1:
        return merged(config, {path[0]: value})
    section = config.get(path[0])
    if not isinstance(section, Mapping):
        raise UserError(f"{OPTION}: the config has no section '{printable(path[0])}'")
    return {**config, path[0]: _with(section, path[1:], value)}
