"""Choosing the form in which latent attention runs."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.layers.decoder import DecoderLayer
from llmviewer.layers.mla import Mla, MlaForm
from llmviewer.models.model import Model


def with_form(model: Model, form: MlaForm) -> Model:
    """The same model with its latent attention computed in `form`."""

    def change(layer: DecoderLayer) -> DecoderLayer:
        return replace(layer, mixer=replace(layer.mixer, form=form)) if isinstance(layer.mixer, Mla) else layer

    return replace(model, layers=tuple(map(change, model.layers)))
