"""Parameters of the vision tower of a multimodal config: it is stored beside the language model, which alone is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmviewer.models.vision_towers import TOWERS, number, siglip

#: Towers whose feed-forward parts have a gate; norms without biases, as all their matrices.
GATED = ("pixtral", "mistral3")
#: Names of the same field in different towers.
LAYERS = ("num_hidden_layers", "depth", "num_layers")
WIDTHS = ("hidden_size", "embed_dim", "hidden_dim")


def vision_parameters(fields: Mapping[str, Any], hidden: int) -> float:
    """Parameters of a vision tower and its projector; 0 if its fields do not say.

    fields: of the whole config.  hidden: width of the language model.  Exact for the towers of `TOWERS`, for SigLIP
    (Gemma 3) and for Pixtral (Mistral Small 3.1), whose parameters their cards state; other towers have their layers,
    patches and two matrices to the language model.
    """
    tower = fields.get("vision_config")
    if not isinstance(tower, Mapping):
        thinker = fields.get("thinker_config")
        return vision_parameters(thinker, hidden) if isinstance(thinker, Mapping) else 0.0
    exact = TOWERS.get(str(fields.get("model_type")))
    found = exact(tower, fields, float(hidden)) if exact else 0.0
    return found or _by_layers(tower, fields, hidden)


def _by_layers(tower: Mapping[str, Any], fields: Mapping[str, Any], hidden: int) -> float:
    """A tower and its projector by the usual sizes of encoders."""
    if tower.get("model_type") == "siglip_vision_model" and fields.get("model_type") in ("gemma3", "shieldgemma2"):
        return siglip(tower) + number(tower.get("hidden_size")) * (hidden + 1.0)  # a matrix and a norm
    layers, width = (
        next((number(tower.get(name)) for name in names if name in tower), 0.0) for names in (LAYERS, WIDTHS)
    )
    inner = number(tower.get("intermediate_size")) or width * number(tower.get("mlp_ratio"))
    if not (layers and width and inner):
        return 0.0
    patch = 3.0 * number(tower.get("patch_size", 14)) ** 2 * width
    if tower.get("model_type") in GATED:
        layer = 4.0 * width**2 + 3.0 * width * inner + 2.0 * width
        return layers * layer + patch + width + _merging_projector(fields, width, hidden)
    layer = 4.0 * width**2 + 4.0 * width + 2.0 * width * inner + width + inner + 4.0 * width
    return layers * layer + patch + width + _positions(tower) * width + 2.0 * width + _projector(tower, width, hidden)


def _merging_projector(fields: Mapping[str, Any], width: float, hidden: int) -> float:
    """A norm, a matrix that merges neighbouring patches, and two matrices to the language model."""
    merged = number(fields.get("spatial_merge_size", 2)) ** 2 * width * width
    return width + merged + width * hidden + float(hidden) ** 2


def _projector(tower: Mapping[str, Any], width: float, hidden: int) -> float:
    """One matrix and a norm (SigLIP in Gemma), else two matrices over merged patches."""
    if tower.get("model_type") == "siglip_vision_model":
        return width * hidden + width
    merge = tower.get("merge_kernel_size") or [tower.get("spatial_merge_size", 2)] * 2
    rows, columns = merge if isinstance(merge, list) and len(merge) == 2 else (0, 0)
    merged = width * number(rows) * number(columns)
    return merged * merged + merged + merged * hidden + hidden + 2.0 * width


def _positions(tower: Mapping[str, Any]) -> float:
    """Rows of the table of positions."""
    if "init_pos_emb_height" in tower:
        return number(tower["init_pos_emb_height"]) * number(tower.get("init_pos_emb_width"))
    side = number(tower.get("image_size")) / max(number(tower.get("patch_size", 14)), 1.0)
    return side**2
