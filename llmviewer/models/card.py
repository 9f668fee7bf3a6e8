"""The config of a model by its name, path or Hub id, and its source."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.core import data, files
from llmviewer.core.errors import UserError, printable
from llmviewer.core.frozen import frozen
from llmviewer.models.config import DIRECTORY, QUANTIZATION_FIELD, QUANTIZATION_FIELDS
from llmviewer.models.model import Model

if TYPE_CHECKING:
    from llmviewer.models.gguf_header import Header

CONFIG_FILE = "config.json"
#: Files beside config.json that state the formats of a checkpoint whose config does not: ModelOpt's, and ModelSlim's.
FORMAT_FILES: dict[str, dict[str, str]] = {
    "hf_quant_config.json": {},
    "quant_model_description.json": {"quant_method": "ascend"},
}
GGUF_MAGIC = b"GGUF"
#: Fields of a GGUF header on the model that it was made from.
BASE_FIELDS = "general.base_model.0."
HUB = "https://huggingface.co/"


def unchanged(model: Model) -> Model:
    """The model as it is parsed."""
    return model


@frozen
class Card:
    """A model's config and its source.

    published: {value, source, note, rounded} of the parameter count; empty for a user's own config.
    is_known: it is the model of that name in model_configs/.
    finish: adds what the source says beside the config: stored formats, notes.  compared: how the config was compared
    with the one of the Hub id that was asked for; empty if it is that model's own.
    """

    name: str
    config: Mapping[str, Any]
    title: str = ""
    source: str = ""
    published: Mapping[str, Any] = field(default_factory=dict)
    is_known: bool = False
    finish: Callable[[Model], Model] = unchanged
    compared: str = ""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names of it in the index of model_configs/."""
        return data.aliases(DIRECTORY).get(self.name, ()) if self.is_known else ()


def read(name: str) -> Card:
    """The Card of the model called `name`: a stem or alias in model_configs/, a path, or a Hub id.

    Paths: a config.json or another JSON or YAML file, a GGUF file, a folder.  A Hub id that is no alias is looked up in
    the local Hugging Face cache, then resolved by its suffixes.
    """
    own = data.user_path(name)
    files.record(own or name)  # a folder changes when a file is added
    found = _in_folder(own, own.resolve().name) if own and own.is_dir() else None
    if found:
        return found
    if name.endswith((".json", ".gguf")):
        files.refuse_named(name)
    if name.endswith(".json"):
        return _in_json(own or Path(name))
    if name.endswith(".gguf"):
        return _in_gguf(own or Path(name))
    try:
        path, stem, is_known = data.find(DIRECTORY, name, "model")
    except UserError:
        card = _in_cache(name) or _by_file_name(name) or _by_suffixes(name)
        if card is None:
            raise
        return card
    if path == own and own.is_dir():
        raise UserError(f"'{printable(path)}' {_missing_config(own)}")
    if path == own and files.head(path, len(GGUF_MAGIC)) == GGUF_MAGIC:  # whatever its name
        return _in_gguf(path)
    card = _in_yaml(path, stem, is_known=is_known)
    return card if data.normalized(name) == stem else _as_alias(card, name)


def _as_alias(card: Card, name: str) -> Card:
    """The Card of a model under another name: with the fields of that Hub id's own config, where it was compared."""
    from llmviewer.models import aliases

    alias = aliases.entries().get(data.normalized(name))
    if alias is None or not alias.is_hub_id or f"{HUB}{alias.repository}/".lower() in card.source.lower():
        return card
    if not alias.source:
        compared = f"never compared with that of {alias.name}; `llmviewer models fetch {alias.name}` downloads it"
        return replace(card, compared=compared, finish=partial(_uncompared, card.finish, alias.name))
    if not alias.fields:
        return replace(card, compared=f"equal to that of {alias.name} by {alias.source}")
    shown = ", ".join(alias.fields)
    return replace(
        card,
        name=alias.name,
        config=aliases.merged(card.config, alias.fields),
        source=f"{HUB}{alias.name}/blob/main/{CONFIG_FILE}",
        compared=f"of {card.name}, but {shown} of {alias.name} by {alias.source}",
        published={} if QUANTIZATION_FIELD in alias.fields else card.published,
        is_known=False,
    )


def _uncompared(finish: Callable[[Model], Model], name: str, model: Model) -> Model:
    return replace(finish(model), uncompared=name)


def _in_yaml(path: Path, stem: str, *, is_known: bool) -> Card:
    spec = data.read_known_yaml(path)
    config = spec.get("config", spec)
    if not isinstance(config, Mapping):
        raise UserError(f"'{printable(path)}': 'config' must be a mapping of the fields of config.json")
    published = spec.get("parameters")
    return Card(
        name=stem,
        config=config,
        title=str(spec.get("name", "")),
        source=str(spec.get("source", "")),
        published=published if isinstance(published, Mapping) else {},
        is_known=is_known,
    )


def _in_json(path: Path) -> Card:
    """The Card of a JSON file; a config.json is named by its folder, and the files beside it are read too."""
    if path.name != CONFIG_FILE:
        return Card(name=path.stem, config=data.read_json(path))
    return Card(name=path.resolve().parent.name, config=_with_formats(data.read_json(path), path.parent))


def _with_formats(config: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The config with the formats that a file beside it states, if it states none itself (as vLLM reads them)."""
    sections = (config, config.get("text_config"))
    if any(section.get(field) for section in sections if isinstance(section, Mapping) for field in QUANTIZATION_FIELDS):
        return config
    for name, fields in FORMAT_FILES.items():
        files.record(folder / name)  # a file that is added later counts
        if data.user_path(str(folder / name)):
            return {**config, QUANTIZATION_FIELD: {**fields, **data.read_json(folder / name)}}
    return config


def _in_folder(folder: Path, name: str) -> Card | None:
    """The Card of a checkpoint's folder: its config.json, else its only GGUF file; None if it has neither."""
    if data.user_path(str(folder / CONFIG_FILE)):
        from llmviewer.models.safetensors_folder import confirmed

        config = _with_formats(data.read_json(folder / CONFIG_FILE), folder)
        return Card(name=name, config=config, finish=partial(confirmed, config=config, folder=folder))
    found = [path for path in sorted(folder.glob("*.gguf")) if "-of-" not in path.stem or "-00001-of-" in path.stem]
    if len(found) > 1:
        shown = f"{printable(found[0].name)}, {printable(found[1].name)}{', …' if len(found) > 2 else ''}"
        raise UserError(f"'{printable(folder)}' has {len(found)} GGUF files ({shown}); give the path of one")
    return _in_gguf(found[0]) if found else None


def _missing_config(folder: Path) -> str:
    """The reason why a folder holds no model."""
    if not os.access(folder, os.X_OK):
        return "cannot be searched"
    if data.user_path(str(folder / "adapter_config.json")):
        return f"holds an adapter without a {CONFIG_FILE}; give the folder of its base model, with --lora"
    return f"is a directory without a {CONFIG_FILE}"


def _in_gguf(path: Path) -> Card:
    """The Card of a GGUF file, with the stored formats of its tensors."""
    if data.is_there(path) and not path.is_file():
        raise UserError(f"'{printable(path)}' is a directory, a device or a pipe; expected a GGUF file")
    from llmviewer.models import gguf_config, gguf_formats, gguf_header

    header = gguf_header.read_parts(path)
    formats = partial(gguf_formats.with_stored_formats, tensors=header.tensors)
    base = None if header.fields.get("general.architecture") in gguf_config.ARCHITECTURES else _base_of(header)
    if base is None:
        return Card(name=path.stem, config=gguf_config.fields(header, path), finish=formats)
    config = {name: value for name, value in base.config.items() if name != QUANTIZATION_FIELD}
    note = f"the shapes of '{printable(path)}' are those of its base model, {base.name}; its formats are its tensors'"
    return Card(name=path.stem, config=config, finish=lambda model: _noted(formats(base.finish(model)), note))


def _base_of(header: Header) -> Card | None:
    """The Card of the known model that a GGUF header names as its base; None if it names none that is known."""
    from llmviewer.models import aliases

    url, owner, own = (
        str(header.fields.get(BASE_FIELDS + field, "")) for field in ("repo_url", "organization", "name")
    )
    named = (url, f"{owner}/{own}")
    for text in named:
        resolved = aliases.resolve("/".join(text.rstrip("/").split("/")[-2:]))
        if resolved is not None:
            return read(resolved.known)
    return None


def _in_cache(name: str) -> Card | None:
    """The Card of a Hub id from the local Hugging Face cache; None if it is not there."""
    from llmviewer.models import file_names, hub

    repository, tag = file_names.repository(name)
    folder = hub.snapshot(repository)
    tagged = sorted(folder.glob("*.gguf")) if folder and tag else []
    stored = next((path for path in tagged if path.stem.lower().endswith(tag.lower())), None)
    card = _in_gguf(stored) if stored else _in_folder(folder, name.rpartition("/")[2]) if folder and not tag else None
    if folder is None or card is None:
        return None
    note = f"{name} is read from the Hugging Face cache, revision {folder.name[:8]}"
    return replace(card, finish=lambda model: _noted(card.finish(model), note))


def _by_file_name(name: str) -> Card | None:
    """The Card of a quantized file's name, if its model is known: --quantization is its format unless one is given."""
    from llmviewer.models import file_names

    found = file_names.named_file(name)
    if found is None:
        return None
    card = read(found.known)
    quantization = found.quantization(card.config)
    stored = "as its checkpoint" if quantization == "none" else f"in {quantization.upper()}"
    note = f"'{printable(name)}', {found.where}, is read as {found.known} {stored}; give its path to read the file"

    def finish(model: Model) -> Model:
        named = f"{quantization.upper()} of '{printable(name)}'"
        return replace(_noted(card.finish(model), note), quantization=quantization, named_format=named)

    return replace(card, is_known=False, finish=finish)


def _by_suffixes(name: str) -> Card | None:
    """The Card of a Hub id whose suffixes lead to a known model; None if they do not."""
    from llmviewer.models import aliases

    resolved = aliases.resolve(name)
    if resolved is None:
        return None
    card, note = read(resolved.known), f"'{printable(name)}' is read as {resolved.known}"
    if not resolved.format:
        hub_id = name if "/" in name else ""
        compared = f"never compared with that of {printable(hub_id)}" if hub_id else card.compared
        return replace(
            card, compared=compared, finish=lambda model: _noted(_uncompared(card.finish, hub_id, model), note)
        )
    note += (
        f" with linear layers stored as {resolved.format}; its own config.json may differ (`llmviewer models fetch`)"
    )

    def finish(model: Model) -> Model:
        stated = f"{resolved.format} of the model's name"
        return replace(_noted(model, note), named_format=stated, doubt_bytes=aliases.doubt_bytes(model))

    config = {**card.config, **resolved.fields}
    return replace(card, name=f"{resolved.known}-{resolved.format}", config=config, is_known=False, finish=finish)


def _noted(model: Model, note: str) -> Model:
    return replace(model, notes=(*model.notes, note))
