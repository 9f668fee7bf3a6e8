"""From the fields of a GGUF header to those of a config.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.core.errors import UserError, printable, quoted, unknown
from llmviewer.models.gguf_families import FAMILIES, LATENT, PER_LAYER
from llmviewer.models.gguf_fields import Source

if TYPE_CHECKING:
    from llmviewer.models.gguf_header import Header

#: Field of config.json -> field of the header below its architecture, for all architectures.
COMMON = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
}


def _llama(source: Source) -> dict[str, Any]:
    """Llama, and Mixtral if there are experts."""
    biases = {"attention_bias": "blk.0.attn_q.bias" in source.tensors}
    experts = source.get("expert_count")
    if not experts:
        return {"model_type": "llama", **biases}
    chosen = source.get("expert_used_count")
    return {"model_type": "mixtral", "num_local_experts": experts, "num_experts_per_tok": chosen, **biases}


def _mistral(source: Source) -> dict[str, Any]:
    return {"model_type": "mistral", "sliding_window": source.get("attention.sliding_window")}


def _qwen2_moe(source: Source) -> dict[str, Any]:
    """Qwen1.5 and 2 with experts; older files do not state the experts' widths, but the tensors have them."""
    return {
        "model_type": "qwen2_moe",
        "num_experts": source.get("expert_count"),
        "moe_intermediate_size": source.size("blk.0.ffn_up_exps.weight", 1),
        "shared_expert_intermediate_size": source.size("blk.0.ffn_up_shexp.weight", 1),
        "num_experts_per_tok": source.get("expert_used_count"),
    }


def _phi3(source: Source) -> dict[str, Any]:
    """Phi-3 and 4; a window of 0 is none, and some sizes rotate a part of each head."""
    sizes = [source.get(name) for name in ("rope.dimension_count", "attention.head_count", "embedding_length")]
    stated = all(isinstance(size, int) and size > 0 for size in sizes)
    partial = {"partial_rotary_factor": sizes[0] * sizes[1] / sizes[2]} if stated else {}
    return {"model_type": "phi3", "sliding_window": source.get("attention.sliding_window") or None, **partial}


#: `general.architecture` of llama.cpp -> the fields in addition to COMMON.
ARCHITECTURES: dict[str, Callable[[Source], dict[str, Any]]] = {
    "llama": _llama,
    "mistral3": _mistral,
    "phi3": _phi3,
    "qwen2moe": _qwen2_moe,
    **FAMILIES,
}


def fields(header: Header, path: Path) -> dict[str, Any]:
    """The fields of config.json that the header describes.  Raises UserError."""
    source = Source(header, f"'{printable(path)}'")
    if source.architecture not in ARCHITECTURES:
        raise unknown("GGUF architecture", source.architecture, ARCHITECTURES, where=source.where)
    by_layer = [name for name in COMMON if source.architecture in PER_LAYER and source.differs(COMMON[name])]
    stated = source.renamed({name: field for name, field in COMMON.items() if name not in by_layer})
    key, value = stated.get("head_dim"), source.get("attention.value_length")
    if value not in (None, key) and source.architecture not in LATENT:
        raise UserError(
            f"{source.where}: keys of {quoted(key)} and values of {quoted(value)} elements; supported: equal"
        )
    return {
        "architectures": [f"{source.architecture} (GGUF)"],
        "torch_dtype": "float16",
        "vocab_size": source.size("token_embd.weight", 1),
        "tie_word_embeddings": "output.weight" not in source.tensors,
        **stated,
        **ARCHITECTURES[source.architecture](source),
    }
