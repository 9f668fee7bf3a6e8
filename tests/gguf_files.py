"""Headers of GGUF files for tests: fields and tensors of a known model, without data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

#: Layers of the small Llama of these tests.
LAYERS = 4
#: Llama of 4 layers: h = 512, 8 query and 2 key-value heads of 64, 1024 in the MLP, 1000 tokens.
LLAMA = {
    "embedding_length": 512,
    "block_count": LAYERS,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
    "feed_forward_length": 1024,
    "context_length": 4096,
}
MATRICES = {
    "attn_q": (512, 512),
    "attn_k": (512, 128),
    "attn_v": (512, 128),
    "attn_output": (512, 512),
    "ffn_gate": (512, 1024),
    "ffn_up": (512, 1024),
    "ffn_down": (1024, 512),
}
NORMS = {"attn_norm": (512,), "ffn_norm": (512,)}
OUTSIDE = {"token_embd.weight": (512, 1000), "output.weight": (512, 1000), "output_norm.weight": (512,)}


def tensors(
    in_layer: Mapping[str, tuple[int, ...]], outside: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors by name, innermost dimension first.  in_layer: names in each of the layers."""
    layers = {f"blk.{at}.{name}.weight": shape for at in range(LAYERS) for name, shape in in_layer.items()}
    return {**outside, **layers}


def written(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    formats: Callable[[str], str],
    fields: Mapping[str, object] = LLAMA,
    architecture: str = "llama",
) -> Path:
    """Write the header of a GGUF file.  formats: name of a tensor -> its format; fields: `!` before a whole name."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for name, value in fields.items():
        writer.add_key_value(name[1:] if name.startswith("!") else f"{architecture}.{name}", *_typed(value))
    writer.add_token_list([f"token {at}" for at in range(1000)])
    for name, shape in shapes.items():
        kind = gguf.GGMLQuantizationType[formats(name)]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        count = int(np.prod(shape)) // block * size
        writer.add_tensor_info(name, list(reversed(shape)), np.dtype(np.float32), count, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def _typed(value: object) -> tuple[object, ...]:
    """The value with its type in the file, and for a list that of its entries."""
    from gguf import GGUFValueType

    if isinstance(value, str):
        return (value, GGUFValueType.STRING)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return (list(value), GGUFValueType.ARRAY, GGUFValueType.UINT32)
    return (value, GGUFValueType.UINT32)
