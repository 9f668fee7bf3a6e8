"""Parameters of a checkpoint's folder, counted from the headers of its safetensors files; the data are never read.

Format: https://huggingface.co/docs/safetensors: the length of the header in 8 bytes, then JSON
{name: {dtype, shape, ...}}.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmviewer.core import data, files
from llmviewer.core.errors import UserError, printable
from llmviewer.core.files import record
from llmviewer.models.config import QUANTIZATION_FIELD
from llmviewer.models.model import Model

INDEX = "model.safetensors.index.json"
#: Limits of a header, as in the format's own reader, and of an index, which names every tensor [byte].
MAX_HEADER_BYTES, MAX_INDEX_BYTES = 10**8, 2**26
#: Scales, zero points and indices of quantized weights; buffers.
_NOT_PARAMETERS = re.compile(
    r"(^|[._])(scales|(weight|input|output|[kqv]|kv)_scale(_inv|_2)?|qzeros|g_idx|weight_shape|\w*zero_points?|(nested_)?(absmax|quant_map)|SCB"
    r"|weight_format|layer_scalar|quant_state\.\w+|inv_freq|masked_bias|e_score_correction_bias)$"
)
#: Vision, audio and multi-token prediction, which are not counted.
_OTHER_PARTS = re.compile(
    r"(^|\.)(visual|vision\w*|audio\w*|image\w*|multi_modal\w*|\w*projector|embed_vision|mtp\w*)\."
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


def confirmed(model: Model, config: Mapping[str, Any], folder: Path) -> Model:
    """The model, with a note if the safetensors headers in its folder hold another number of parameters."""
    try:
        files, listed = _files(folder)
        if not files:
            return model
        if len(files) < listed:
            problem = f"{listed - len(files)} of {listed} safetensors files listed in {INDEX} are missing"
            return _noted(model, f"{problem}; the parameter count is not confirmed")
        shapes = {name: entry for file in files for name, entry in header(file).items()}
        counted = sum(_parameters(name, entry, model, _packed_bits(config)) for name, entry in shapes.items())
    except UserError as error:
        return _noted(model, f"the parameter count is not confirmed: {error.marked}")
    except (ValueError, OverflowError, OSError):  # numbers of thousands of digits, names that no disk takes
        return _noted(model, "the parameter count is not confirmed: the safetensors headers or their index are broken")
    if counted == model.parameters:
        return model
    stated = f"config.json describes {model.parameters:,.0f}"
    return _noted(model, f"the safetensors headers hold {counted:,.0f} parameters, {stated}; the config is used")


def _noted(model: Model, note: str) -> Model:
    return replace(model, notes=(*model.notes, note))


def _files(folder: Path) -> tuple[list[Path], int]:
    """The safetensors files of a model that are present, and how many the index lists."""
    index = folder / INDEX
    if data.user_path(str(index)):
        weight_map = data.mapping(data.read_text(index, MAX_INDEX_BYTES), index, "JSON").get("weight_map")
        names = set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()
    else:
        found = {path.name for path in folder.glob("*.safetensors") if not path.name.startswith("adapter_")}
        names = {name for name in found if name.startswith("model")} or found
    present = [folder / name for name in sorted(names) if Path(name).name == name and data.is_there(folder / name)]
    return present, len(names)


def header(path: Path) -> dict[str, tuple[str, int, int]]:
    """Name -> (dtype, elements, dimensions) of every tensor of a safetensors file.  Raises UserError."""
    files.check_allowed(path)
    record(path)
    if not path.is_file():
        raise UserError(f"'{printable(path)}' is not a file")
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            content = stream.read(length) if length <= MAX_HEADER_BYTES else b""
    except OSError as error:
        raise UserError(f"cannot read '{printable(path)}': {error.strerror or error}") from error
    if not 2 <= length == len(content):
        raise UserError(f"'{printable(path)}' has no safetensors header")
    entries = data.mapping(content.decode("utf-8", errors="replace"), path, "JSON")
    return dict(_entry(name, entry, path) for name, entry in entries.items() if name != "__metadata__")


def _entry(name: str, entry: Any, path: Path) -> tuple[str, tuple[str, int, int]]:
    shape = entry.get("shape") if isinstance(entry, dict) else None
    if not isinstance(shape, list) or not all(isinstance(size, int) and 0 <= size < 2**48 for size in shape):
        raise UserError(f"'{printable(path)}': tensor '{printable(name)}' has no shape")
    return name, (str(entry.get("dtype")), math.prod(shape), len(shape))


def _parameters(name: str, entry: tuple[str, int, int], model: Model, bits: float) -> float:
    """Parameters in a stored tensor of the language model; packed integers hold several."""
    dtype, elements, dimensions = entry
    layer = _LAYER.search(name)
    beyond = layer is not None and int(layer[1]) >= sum(kind.repeats for kind in model.layers)
    mask = name.endswith(".bias") and dimensions == 4  # the causal mask of GPT-2
    tied = model.head.tied and name.endswith("lm_head.weight")
    if beyond or mask or tied or _NOT_PARAMETERS.search(name) or _OTHER_PARTS.search(name):
        return 0.0
    packed = {"I32": 32.0 / bits, "U8": 2.0}  # GPTQ, AWQ, compressed-tensors; bitsandbytes, NVFP4, MXFP4
    return round(elements * packed.get(dtype, 1.0))


def _packed_bits(config: Mapping[str, Any]) -> float:
    """Bits of the integers that a quantized checkpoint packs; 4 unless its config states others."""
    widths = (value for key, value in _fields(config.get(QUANTIZATION_FIELD)) if key in ("bits", "w_bit", "num_bits"))
    return float(next((width for width in widths if isinstance(width, int) and 1 <= width <= 16), 4))


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """All fields of nested mappings, outer ones first."""
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        yield name, inner
        yield from _fields(inner)
