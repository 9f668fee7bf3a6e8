"""Loading a model by name, by path, or from the fields of a config.json."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llmviewer.core import data, dtypes
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError, printable, unknown
from llmviewer.models.config import QUANTIZATION_FIELD, Config
from llmviewer.models.model import Model

#: Values of --dtype other than `auto`; narrower formats are quantizations.
ALLOWED_DTYPES = ("bf16", "fp16", "fp32")


def names() -> list[str]:
    """Names of all models in model_configs/ (file stems), sorted."""
    return data.stems("model_configs")


def load(name: str, *, dtype: str = "auto", ignored: tuple[str, ...] = ()) -> Model:
    """The model called `name`: a stem or alias in model_configs/, a path to a config.json, or a folder with one.

    dtype: `auto` is the checkpoint's dtype; a missing one or float32 becomes 16 bit with a note, as in vLLM.
    ignored: unsupported fields to ignore.
    """
    card = read(name)
    return replace(parse(card.config, card.name, dtype, ignored), source=card.source)


def from_fields(fields: Mapping[str, Any], *, dtype: str = "auto", ignored: tuple[str, ...] = ()) -> Model:
    """The model with these fields of a config.json, named by its `_name_or_path` or its model_type."""
    name = next((str(fields[key]) for key in ("_name_or_path", "model_type") if fields.get(key)), "config")
    return parse(fields, Path(name).name, dtype, ignored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A model's config and its source.

    published: {value, source, note, rounded} of the parameter count; empty for a user's own config.
    """

    name: str
    config: Mapping[str, Any]
    title: str = ""
    source: str = ""
    published: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


def read(name: str) -> Card:
    """The Card of the model called `name` (a name or path as in `load`)."""
    own = data.user_path(name)
    path = own or Path(name)
    if own and data.user_path(str(own / "config.json")):
        return Card(name=own.resolve().name, config=data.read_json(own / "config.json"))
    if name.endswith(".json"):
        return Card(name=_json_name(path), config=data.read_json(path))
    found, stem, aliases = data.find("model_configs", name, "model")
    if found == own and own.is_dir():
        problem = "is a directory without a config.json" if os.access(own, os.X_OK) else "cannot be searched"
        raise UserError(f"'{printable(found)}' {problem}")
    spec = data.read_yaml(found)
    config = spec.get("config", spec)
    if not isinstance(config, Mapping):
        raise UserError(f"'{printable(found)}': 'config' must be a mapping of the fields of config.json")
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
    """The Model described by the fields of a config.json."""
    from llmviewer.models.architectures import known_model_types, parser

    config = Config(fields, name)
    model_type = config.text("model_type")
    known = known_model_types()
    if model_type not in known:
        raise unknown("model_type", model_type, known, where=name, hint="see `llmviewer models list`")
    chosen, notes = _dtype(config, dtype)
    model = parser(model_type)(config, chosen)
    if QUANTIZATION_FIELD not in ignored and any(
        section.has(QUANTIZATION_FIELD) for section in (config, *config.sections.values())
    ):
        from llmviewer.models.quantization import with_checkpoint_formats

        model = with_checkpoint_formats(model, config)
    config.check_all_read(ignored)
    architectures = config.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else model_type
    return replace(model, name=name, architecture=architecture, notes=(*notes, *model.notes))


def _dtype(config: Config, requested: str) -> tuple[Dtype, tuple[str, ...]]:
    """The requested dtype, or for `auto` the checkpoint's; and notes about the choice."""
    if requested != "auto":
        if dtypes.SPELLINGS.get(requested.lower(), requested.lower()) not in ALLOWED_DTYPES:
            raise unknown("dtype", requested, ("auto", *ALLOWED_DTYPES), hint="narrower formats are quantizations")
        return dtypes.get_dtype(requested), ()
    text = config.section("text_config") if isinstance(config.get("text_config"), Mapping) else config
    stated = next((c.get(f) for c in (text, config) for f in ("torch_dtype", "dtype") if c.has(f)), None)
    if stated is None:
        return dtypes.get_dtype("fp16"), ("the config states no dtype; fp16 is assumed",)
    if dtypes.get_dtype(stated).bits > 16:
        return dtypes.get_dtype("fp16"), (
            f"the checkpoint is {stated}; it is served in fp16 (use --dtype fp32 to keep it)",
        )
    return dtypes.get_dtype(stated), ()
