"""Hub ids in model_configs/aliases.yaml: the fields in which their own config.json differs from their model's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llmviewer.core import data, file_cache
from llmviewer.models.config import QUANTIZATION_FIELD

DIRECTORY = "model_configs"
_ENTRIES: file_cache.CacheOfFiles[Mapping[str, Alias]] = file_cache.CacheOfFiles()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A name of a model.  fields: in which the config of this Hub id differs.  source: where that config was read.

    Without a source the id was never compared with its own config.json.  repository: its name on the Hub today.
    """

    name: str
    stem: str
    repository: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def is_hub_id(self) -> bool:
        """Whether the name is that of a checkpoint on the Hub, not another spelling of the model's name."""
        organisation, _, rest = self.name.partition("/")
        return bool(rest) and organisation != "DiT" and not organisation.startswith("DiT-")


def entries() -> Mapping[str, Alias]:
    """Every alias by its name as it is compared."""
    path = str(data.folder(DIRECTORY) / data.ALIASES)
    return _ENTRIES.get(path, _read)


def _read() -> dict[str, Alias]:
    stated = {data.normalized(name): (stem, name, own) for stem, name, own in data.alias_items(DIRECTORY)}

    def alias(key: str) -> Alias:
        stem, name, own = stated[key]
        if isinstance(own, str):  # an earlier name of the same repository
            target = alias(data.normalized(own))
            return replace(target, name=name)
        fields = {field: value for field, value in own.items() if field != "source"}
        return Alias(name=name, stem=stem, repository=name, fields=fields, source=str(own.get("source", "")))

    return {key: alias(key) for key in stated}


def merged(config: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The config with these fields, in the section of its language model where they stand there."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return {**config, **fields}
    outside = (*config, QUANTIZATION_FIELD)
    inner = {name: value for name, value in fields.items() if name in text or name not in outside}
    outer = {name: value for name, value in fields.items() if name not in inner}
    return {**config, **outer, "text_config": {**text, **inner}}
