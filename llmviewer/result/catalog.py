"""JSON objects of all known models and chips, for the commands `models` and `hardware`."""

from __future__ import annotations

from typing import Any

from llmviewer import models
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.hardware.chip import FIGURES
from llmviewer.result.describe import hardware_object, model_object, sources, unknowns

#: Figure of a chip -> (label, SI unit).
FIGURE_LABELS = {name: (info.label, info.unit) for name, info in FIGURES.items()}


def model_list() -> list[dict[str, Any]]:
    """Model objects of all models; a model that cannot be read has only `name` and `error`."""
    return [_model(name) for name in models.names()]


def _model(name: str) -> dict[str, Any]:
    try:
        return model_object(models.load(name))
    except UserError as error:
        return {"name": name, "error": str(error)}


def model_card(name: str, *, dtype: str = "auto", ignored: tuple[str, ...] = ()) -> dict[str, Any]:
    """The model object with published parameter counts, layers, notes and the fields of its config."""
    card = models.read(name)
    model = models.build(card, dtype=dtype, ignored=ignored)
    return {
        **model_object(model),
        "title": card.title,
        "aliases": list(card.aliases),
        "compared": card.compared or None,
        "source": card.source,
        "published_parameters": dict(card.published) or None,
        "layers": [{"block": layer.name, "layers": layer.repeats} for layer in model.all_layers],
        "notes": list(model.notes),
        "config": dict(card.config),
    }


def hardware_list() -> list[dict[str, Any]]:
    """Hardware objects of all chips; a chip that cannot be read has only `name` and `error`."""
    return [_chip(name) for name in specs.names()]


def _chip(name: str) -> dict[str, Any]:
    try:
        return hardware_object(specs.load(name))
    except UserError as error:
        return {"name": name, "error": str(error)}


def hardware_card(name: str) -> dict[str, Any]:
    """The hardware object with the source of every figure and a list of unpublished figures."""
    chip = specs.load(name)
    return {
        **hardware_object(chip),
        "path": chip.path,
        "figures": sources(chip),
        "assumed": unknowns(chip),
    }
