"""Builds the library's model for a config on the meta device: shapes only, no memory."""

from __future__ import annotations

import importlib
import types
from collections.abc import Mapping
from typing import Any

from .equivalents import EQUIVALENTS
from .errors import LibraryMissingError, MissingClassError, UnknownFamilyError
from .families import FAMILIES, NESTED_TEXT, Family
from .layer_kinds import listed

BOOKKEEPING = (
    *("architectures", "auto_map", "dtype", "torch_dtype", "quantization_config", "transformers_version"),
    "time_step_limit",  # clamps time steps; infinity is no number in JSON
)
"""Fields left out: none of them changes a product. Without a dtype the model is float32, so that no weight is cast
(a cast weight would no longer be known as a weight)."""

PLAIN_KERNELS = {"attn_implementation": "eager", "experts_implementation": "batched_mm"}
"""The grouped kernel for experts has no formula in PyTorch's counter; its FLOPs would vanish."""

ENCODERS = ("bert", "camembert", "distilbert", "roberta", "xlm-roberta")
"""Model types whose class is the one that `architectures` names."""

DATA_DEPENDENT_ROPE = ("longrope", "su", "dynamic")
"""Rotary scalings whose code looks at the largest position, which the meta device does not have. They change
frequencies, never a product, and are replaced by the plain rotary embedding."""


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's own config: `text_config` of a multimodal one, with its model type filled in."""
    if "text_config" not in config:
        return dict(config)
    inner = dict(config["text_config"])
    inner.setdefault("model_type", NESTED_TEXT.get(config.get("model_type", ""), config.get("model_type", "")))
    if "tie_word_embeddings" in config:
        inner.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    return inner


def family_of(config: Mapping[str, Any]) -> Family:
    """The row of the table for a config."""
    text = text_config(config)
    model_type = text.get("model_type", "")
    if model_type in ENCODERS:
        return Family(model_class=text["architectures"][0], encoder=True)
    if model_type in FAMILIES or model_type in EQUIVALENTS:
        return FAMILIES.get(model_type) or EQUIVALENTS[model_type]
    if model_type not in causal_classes():
        raise UnknownFamilyError(f"model type {model_type!r} has no row in tests/certificate/families.py")
    return Family(model_class=causal_classes()[model_type], layers=(listed,))


def causal_classes() -> Mapping[str, str]:
    """Model type -> class, for every causal language model of the library; empty if it is not installed."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES
    except ImportError:
        return {}
    return dict(NAMES)


def model_class(family: Family) -> Any:
    """The library's class, imported on first use."""
    try:
        library = importlib.import_module("transformers")
        importlib.import_module("torch")
    except ImportError as error:
        raise LibraryMissingError(f"{family.model_class}: {error.name} is not installed") from error
    try:
        return getattr(library, family.model_class)
    except (AttributeError, ImportError) as error:
        raise MissingClassError(f"transformers {library.__version__} has no class {family.model_class}") from error


def resolved_config(config: Mapping[str, Any]) -> Any:
    """The library's config object, all defaults and per-layer lists filled in."""
    family = family_of(config)
    fields = family.fields(text_config(config))
    kept = {name: _plain_rope(value) for name, value in fields.items() if name not in BOOKKEEPING}
    kept.pop("model_type", None)
    return model_class(family).config_class.from_dict(kept)


def build(config: Mapping[str, Any]) -> Any:
    """The model in evaluation mode on the meta device, eager attention, experts as batched products."""
    family = family_of(config)
    cls = model_class(family)
    import torch

    with torch.device("meta"):
        model = cls._from_config(resolved_config(config), **PLAIN_KERNELS, dtype=torch.float32)
    model.eval().requires_grad_(requires_grad=False)
    for module in model.modules():
        stand_in = family.stand_ins.get(type(module).__name__)
        if stand_in:
            module.forward = types.MethodType(stand_in, module)
    return model


def _plain_rope(value: Any) -> Any:
    """Replaces a data-dependent rotary scaling; anything else is returned as it is."""
    if isinstance(value, Mapping) and (value.get("rope_type") or value.get("type")) in DATA_DEPENDENT_ROPE:
        theta = {"rope_theta": value["rope_theta"]} if "rope_theta" in value else {}
        return {"rope_type": "default", **theta}
    return value
