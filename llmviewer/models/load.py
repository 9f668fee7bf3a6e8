"""Loading a model by name, by path, or from the fields of a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmviewer.core import data, dtypes
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import unknown
from llmviewer.models.card import Card, read
from llmviewer.models.config import QUANTIZATION_FIELD, QUANTIZATION_FIELDS, Config
from llmviewer.models.model import Model

#: Values of --dtype other than `auto`; narrower formats are quantizations.
ALLOWED_DTYPES = ("bf16", "fp16", "fp32")


def names() -> list[str]:
    """Names of all models in model_configs/ (file stems), sorted."""
    return data.stems("model_configs")


def load(name: str, *, dtype: str = "auto", ignored: tuple[str, ...] = (), changed: str = "none") -> Model:
    """The model called `name`: a stem or alias in model_configs/, a path, or a Hub id, as `card.read` finds them.

    dtype: `auto` is the checkpoint's dtype; a missing one or float32 becomes 16 bit with a note, as in vLLM.
    ignored: unsupported fields to ignore.  changed: fields with other values, `num_key_value_heads=4,...`.
    """
    return build(read(name), dtype=dtype, ignored=ignored, changed=changed)


def build(card: Card, *, dtype: str = "auto", ignored: tuple[str, ...] = (), changed: str = "none") -> Model:
    """The model that a Card describes; dtype, ignored and changed as in `load`."""
    fields: Mapping[str, Any] = {}
    if changed != "none":
        from llmviewer.models import edited

        fields = edited.changes(changed)
        card = replace(edited.with_changes(card, fields), name=f"{card.name}[{changed}]")
    model = parse(card.config, card.name, dtype, ignored, fields)
    return card.finish(replace(model, source=card.source, changed=changed))


def name_of(fields: Mapping[str, Any]) -> str:
    """Name of a model by its `_name_or_path` or its model_type."""
    name = next((str(fields[key]) for key in ("_name_or_path", "model_type") if fields.get(key)), "config")
    return name.rpartition("/")[2] or name


def from_fields(
    fields: Mapping[str, Any], *, dtype: str = "auto", ignored: tuple[str, ...] = (), changed: str = "none"
) -> Model:
    """The model with these fields of a config.json, named by them; ignored and changed as in `load`."""
    return build(Card(name=name_of(fields), config=fields), dtype=dtype, ignored=ignored, changed=changed)


def parse(
    fields: Mapping[str, Any],
    name: str,
    dtype: str = "auto",
    ignored: tuple[str, ...] = (),
    changed: Mapping[str, Any] | None = None,
) -> Model:
    """The Model described by the fields of a config.json.  changed: those of them that a user has changed."""
    from llmviewer.models.draft_heads import refuse_draft, with_own_head
    from llmviewer.models.wrappers import parser, type_of

    config = Config(fields, name)
    refuse_draft(config)
    model_type, notes = type_of(config)
    chosen, dtype_notes = chosen_dtype(config, dtype)
    config.assume_class(model_type, nested=False)
    model = with_own_head(parser(model_type)(config, chosen), config)
    if QUANTIZATION_FIELD not in ignored and any(
        section.has(name) for section in (config, *config.all_sections()) for name in QUANTIZATION_FIELDS
    ):
        from llmviewer.models.quantization import with_checkpoint_formats

        model = with_checkpoint_formats(model, config)
    config.check_used(changed or ())
    config.check_all_read(ignored)
    architectures = config.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else model_type
    notes = (*notes, *dtype_notes, *config.assumptions())
    return replace(model, name=name, architecture=architecture, notes=(*notes, *model.notes))


def chosen_dtype(config: Config, requested: str) -> tuple[Dtype, tuple[str, ...]]:
    """The requested dtype, or for `auto` the checkpoint's; and notes about the choice."""
    if requested != "auto":
        if dtypes.SPELLINGS.get(requested.lower(), requested.lower()) not in ALLOWED_DTYPES:
            raise unknown("dtype", requested, ("auto", *ALLOWED_DTYPES), hint="narrower formats are quantizations")
        return dtypes.get_dtype(requested), ()
    from llmviewer.models.wrappers import text_fields

    text = text_fields(config.fields)
    stated = next((c[f] for c in (text, config.fields) for f in ("torch_dtype", "dtype") if c.get(f)), None)
    if stated is None:
        return dtypes.get_dtype("fp16"), ("the config states no dtype; fp16 is assumed",)
    if dtypes.get_dtype(stated).bits > 16:
        return dtypes.get_dtype("fp16"), (
            f"the checkpoint is {stated}; it is served in fp16 (use --dtype fp32 to keep it)",
        )
    return dtypes.get_dtype(stated), ()
