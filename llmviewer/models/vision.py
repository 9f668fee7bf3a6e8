"""Parameters of the vision towers stored beside language models, which alone are run, with their projectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from llmviewer.core.arguments import MAX_WHOLE_NUMBER
from llmviewer.core.errors import UserError

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
    parameters = exact(tower, fields, float(hidden)) if exact else 0.0
    return parameters or _by_layers(tower, fields, hidden)


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


Fields: TypeAlias = Mapping[str, Any]


def number(value: object) -> float:
    """The number of a field; 0 for anything else.  Raises UserError for a size that no tower has."""
    if isinstance(value, list) and value:
        return number(value[0])  # a square given by its sides
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return 0.0
    if not abs(value) <= MAX_WHOLE_NUMBER:
        raise UserError(f"a size of the vision tower is beyond {MAX_WHOLE_NUMBER:,}")
    return float(value)


def _size(tower: Fields, name: str, default: float = 0.0) -> float:
    return number(tower.get(name, default))


def _linear(inputs: float, outputs: float) -> float:
    """A matrix with a bias."""
    return inputs * outputs + outputs


def _encoder_layer(width: float, inner: float) -> float:
    """Four attention matrices and a plain MLP, all with biases, and two LayerNorms."""
    return 4.0 * _linear(width, width) + _linear(width, inner) + _linear(inner, width) + 4.0 * width


def _patches(tower: Fields, width: float) -> float:
    """The convolution over patches, without its bias."""
    return 3.0 * _size(tower, "temporal_patch_size", 1) * _size(tower, "patch_size", 14) ** 2 * width


def _grid(tower: Fields) -> float:
    """Patches of an image."""
    return float((_size(tower, "image_size") // max(_size(tower, "patch_size", 14), 1.0)) ** 2)


def _merger(width: float, hidden: float) -> float:
    """Two matrices over four neighbouring patches."""
    return _linear(4.0 * width, 4.0 * width) + _linear(4.0 * width, hidden)


def clip(tower: Fields) -> float:
    """CLIP's vision model: a class embedding, positions, a norm before and after the layers."""
    width = _size(tower, "hidden_size")
    layers = _size(tower, "num_hidden_layers") * _encoder_layer(width, _size(tower, "intermediate_size"))
    return layers + width + _patches(tower, width) + (_grid(tower) + 1.0) * width + 4.0 * width


def siglip(tower: Fields) -> float:
    """SigLIP's vision model; with `vision_use_head` its pooling head."""
    width, inner = _size(tower, "hidden_size"), _size(tower, "intermediate_size")
    layers = _size(tower, "num_hidden_layers") * _encoder_layer(width, inner)
    head = _encoder_layer(width, inner) - width if tower.get("vision_use_head") is True else 0.0  # probe, one norm less
    return layers + _patches(tower, width) + width + _grid(tower) * width + 2.0 * width + head


def _llava(tower: Fields, fields: Fields, hidden: float) -> float:
    """CLIP or SigLIP and two matrices; LLaVA-NeXT and OneVision have a row that ends an image's line."""
    width = _size(tower, "hidden_size")
    projector = _linear(width, hidden) + _linear(hidden, hidden)
    newline = hidden if fields.get("model_type") != "llava" else 0.0
    return _encoder(tower) + projector + newline


def _encoder(tower: Fields) -> float:
    if tower.get("model_type") not in ENCODERS:
        return 0.0
    return ENCODERS[str(tower.get("model_type"))](tower)


def _paligemma(tower: Fields, fields: Fields, hidden: float) -> float:
    """SigLIP and one matrix with a bias."""
    return siglip(tower) + _linear(_size(tower, "hidden_size"), hidden)


def _gemma4(tower: Fields, fields: Fields, hidden: float) -> float:
    """Gated layers with norms before and after both halves and over heads, a table of both coordinates, one matrix.

    `standardize` adds a scale and a shift of the output.
    """
    width, inner, head = (_size(tower, name) for name in ("hidden_size", "intermediate_size", "head_dim"))
    layer = 4.0 * width**2 + 3.0 * width * inner + 4.0 * width + 2.0 * head
    positions = 2.0 * _size(tower, "position_embedding_size") * width
    standard = 2.0 * width if tower.get("standardize") is True else 0.0
    return _size(tower, "num_hidden_layers") * layer + _patches(tower, width) + positions + standard + width * hidden


def _internvl(tower: Fields, fields: Fields, hidden: float) -> float:
    """InternViT: two scales per layer; a norm and two matrices over four merged patches."""
    width, inner = _size(tower, "hidden_size"), _size(tower, "intermediate_size")
    has_bias = tower.get("attention_bias", tower.get("qkv_bias", False))
    layer = _encoder_layer(width, inner) + 2.0 * width - (0.0 if has_bias else 3.0 * width)
    if tower.get("use_qk_norm", tower.get("qk_normalization", False)):
        layer += 2.0 * width
    if tower.get("norm_type") == "rms_norm":
        layer -= 2.0 * width
    embeddings = width + _patches(tower, width) + width + (_grid(tower) + 1.0) * width
    merged = width / max(_size(fields, "downsample_ratio", 0.5), 0.01) ** 2
    projector = 2.0 * merged + _linear(merged, hidden) + _linear(hidden, hidden)
    return _size(tower, "num_hidden_layers", _size(tower, "depth")) * layer + embeddings + projector


def _qwen2_vl(tower: Fields, fields: Fields, hidden: float) -> float:
    """LayerNorms and a plain MLP; the tower's `hidden_size` is that of the language model."""
    width = _size(tower, "embed_dim", 1280)
    layer = _encoder_layer(width, width * _size(tower, "mlp_ratio", 4))
    patches = _patches({"temporal_patch_size": 2, **tower}, width)
    outputs = _size(tower, "hidden_size", hidden)
    return _size(tower, "depth", 32) * layer + patches + 2.0 * width + _merger(width, outputs)


def _qwen2_5_vl(tower: Fields, fields: Fields, hidden: float) -> float:
    """RMSNorms and a gated MLP with biases."""
    width, inner = _size(tower, "hidden_size", 1280), _size(tower, "intermediate_size", 3420)
    layer = 2.0 * width + 4.0 * _linear(width, width) + 2.0 * _linear(width, inner) + _linear(inner, width)
    patches = _patches({"temporal_patch_size": 2, **tower}, width)
    outputs = _size(tower, "out_hidden_size", hidden)
    return _size(tower, "depth", 32) * layer + patches + width + _merger(width, outputs)


def _qwen3_vl(tower: Fields, fields: Fields, hidden: float) -> float:
    """Learned positions, and a merger of its own for every layer whose output enters the language model."""
    width = _size(tower, "hidden_size")
    outputs = _size(tower, "out_hidden_size", hidden)
    layer = _encoder_layer(width, _size(tower, "intermediate_size"))
    patches = _patches({"temporal_patch_size": 2, "patch_size": 16, **tower}, width) + width
    positions = _size(tower, "num_position_embeddings", 2304) * width
    indexes = tower.get("deepstack_visual_indexes")
    deep = len(indexes) if isinstance(indexes, list) else 0
    mergers = (1.0 + deep) * _merger(width, outputs) + 2.0 * width + deep * 8.0 * width
    return _size(tower, "depth") * layer + patches + positions + mergers


#: model_type of a vision encoder -> its parameters.
ENCODERS: dict[str, Callable[[Fields], float]] = {"clip_vision_model": clip, "siglip_vision_model": siglip}
#: model_type of a wrapper -> parameters of its tower and projector, from its vision section and all fields.
TOWERS: dict[str, Callable[[Fields, Fields, float], float]] = {
    "gemma4": _gemma4,
    "internvl": _internvl,
    "internvl_chat": _internvl,
    "llava": _llava,
    "llava_next": _llava,
    "llava_next_video": _llava,
    "llava_onevision": _llava,
    "paligemma": _paligemma,
    "qianfan_ocr": _internvl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen2_vl": _qwen2_vl,
    "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
}
