"""Names and paths -> Model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llmviewer.core import data, dtypes
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError, shown, unknown
from llmviewer.models.config import STORED, Config
from llmviewer.models.model import Model

#: What --dtype may ask for beside `auto`; narrower formats are quantizations.
ASKABLE = ("bf16", "fp16", "fp32")


def names() -> list[str]:
    """Stems of all models in model_configs/."""
    return data.stems("model_configs")


def load(name: str, *, dtype: str = "auto", ignored: tuple[str, ...] = ()) -> Model:
    """The model called `name`: a stem or alias in model_configs/, a path to a config.json, or a folder holding one.

    dtype: `auto` takes the checkpoint's; a missing one or float32 becomes 16 bit with a note, as vLLM does.
    ignored: fields to go on without.
    """
    card = read(name)
    return replace(parse(card.config, card.name, dtype, ignored), source=card.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What is written about a model: its config and where that comes from.

    published: {value, source, note, rounded} of the parameter count; empty for a config of the user's own.
    """

    name: str
    config: Mapping[str, Any]
    title: str = ""
    source: str = ""
    published: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


def read(name: str) -> Card:
    """The card of the model called `name` (names and paths as in `load`)."""
    own = data.own(name)
    path = own or Path(name)
    if own and data.own(str(own / "config.json")):
        return Card(name=own.resolve().name, config=data.read_json(own / "config.json"))
    if name.endswith(".json"):
        return Card(name=_json_name(path), config=data.read_json(path))
    found, stem, aliases = data.find("model_configs", name, "model")
    if found == own and own.is_dir():
        has_none = "is a directory without a config.json" if os.access(own, os.X_OK) else "cannot be searched"
        raise UserError(f"'{shown(found)}' {has_none}")
    spec = data.read_yaml(found)
    config = spec.get("config", spec)
    if not isinstance(config, Mapping):
        raise UserError(f"'{shown(found)}': 'config' must be a mapping of the fields of config.json")
    published = spec.get("parameters")
    return Card(
        name=stem,
        config=config,
        title=str(spec.get("name", "")),
        source=str(spec.get("source", "")),
        published=published if isinstance(published, Mapping) else {},
        aliases=aliases,
    )


def _json_name(path: Path) -> str:
    return path.resolve().parent.name if path.name == "config.json" else path.stem


def parse(fields: Mapping[str, Any], name: str, dtype: str = "auto", ignored: tuple[str, ...] = ()) -> Model:
    """A Model from the fields of a config.json."""
    from llmviewer.models.architectures import known, parser

    config = Config(fields, name)
    model_type = config.text("model_type")
    if model_type not in known():
        raise unknown("model_type", model_type, known(), where=name, hint="`llmviewer models list` shows what we read")
    chosen, notes = _dtype(config, dtype)
    model = parser(model_type)(config, chosen)
    if STORED not in ignored and any(part.has(STORED) for part in (config, *config.parts.values())):
        from llmviewer.models.quantization import as_stored

        model = as_stored(model, config)
    config.finish(ignored)
    listed = config.get("architectures")
    architecture = str(listed[0]) if isinstance(listed, list) and listed else model_type
    return replace(model, name=name, architecture=architecture, notes=(*notes, *model.notes))


def _dtype(config: Config, wanted: str) -> tuple[Dtype, tuple[str, ...]]:
    """The dtype of the checkpoint, or the one asked for, and what to tell of it."""
    if wanted != "auto":
        if dtypes.SPELLINGS.get(wanted.lower(), wanted.lower()) not in ASKABLE:
            raise unknown("dtype", wanted, ("auto", *ASKABLE), hint="narrower formats are quantizations")
        return dtypes.named(wanted), ()
    text = config.part("text_config") if isinstance(config.get("text_config"), Mapping) else config
    stated = next((c.get(f) for c in (text, config) for f in ("torch_dtype", "dtype") if c.has(f)), None)
    if stated is None:
        return dtypes.named("fp16"), ("the config states no dtype; fp16 is taken",)
    if dtypes.named(stated).bits > 16:
        return dtypes.named("fp16"), (f"the checkpoint is {stated}; it is served in fp16 (--dtype fp32 keeps it)",)
    return dtypes.named(stated), ()
