"""Stored formats of a GGUF file's tensors, layer by layer, and the count of its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmviewer.core.dtypes import DTYPES, Dtype
from llmviewer.core.ir import BUFFER, Block
from llmviewer.core.workload import decode
from llmviewer.formats.checkpoint import Checkpoint, Variant, alike
from llmviewer.formats.linear import Format, is_linear, weight_access
from llmviewer.models.model import Model

if TYPE_CHECKING:
    from llmviewer.models.gguf_header import StoredTensor

#: Operator -> name of its tensors in a layer of a GGUF file.
LAYER_NAMES = {
    "attn_norm": "attn_norm",
    "attn_post_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "mlp_post_norm": "post_ffw_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "qkv_proj": "attn_qkv",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "gate_up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "router": "ffn_gate_inp",
    "expert_gate_proj": "ffn_gate_exps",
    "expert_up_proj": "ffn_up_exps",
    "expert_down_proj": "ffn_down_exps",
    "shared_gate": "ffn_gate_inp_shexp",
    "shared_gate_proj": "ffn_gate_shexp",
    "shared_up_proj": "ffn_up_shexp",
    "shared_down_proj": "ffn_down_shexp",
    "router_correction": "exp_probs_b",
    "sinks": "attn_sinks",
    "q_a_proj": "attn_q_a",
    "q_a_norm": "attn_q_a_norm",
    "q_b_proj": "attn_q_b",
    "kv_a_proj": "attn_kv_a_mqa",
    "kv_a_norm": "attn_kv_a_norm",
    "kv_b_proj": "attn_kv_b",
    "dense_post_norm": "post_ffw_norm_1",
    "expert_norm": "pre_ffw_norm_2",
    "expert_post_norm": "post_ffw_norm_2",
    "expert_gate_up_proj": "ffn_gate_up_exps",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "in_proj_qkv": "attn_qkv",
    "in_proj_z": "attn_gate",
    "in_proj_a": "ssm_alpha",
    "in_proj_b": "ssm_beta",
    "in_proj_qkvz": "ssm_in",
    "in_proj_ba": "ssm_ba",
    "out_proj": "ssm_out",
    "in_proj": "ssm_in",
    "conv": "ssm_conv1d",
    "x_proj": "ssm_x",
    "dt_proj": "ssm_dt",
    "mixer_norm": "ssm_norm",
}
#: Operator -> name of its tensors in a layer of a short convolution (LFM2).
SHORT = {"in_proj": "shortconv.in_proj", "conv": "shortconv.conv", "out_proj": "shortconv.out_proj"}
#: Weight that is no operator's -> name of its tensor in a layer.
WHOLE_NAMES = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias"}
#: Operator -> name of its tensors outside the layers.
MODEL_NAMES = {
    "embedding": "token_embd",
    "lm_head": "output",
    "final_norm": "output_norm",
    "per_layer_embedding": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
}
#: Start of the names of tensors that are no parameters: factors of rope.
UNCOUNTED = "rope_"
#: Formats of GGUF that are plain numbers; they are multiplied without quantized inputs.
PLAIN = {"F32": DTYPES["fp32"], "F16": DTYPES["fp16"], "BF16": DTYPES["bf16"], "F64": DTYPES["fp64"]}
#: Inputs of quantized matrices in llama.cpp: 8 bit with a 16-bit scale and sum per 32.
Q8_1 = Dtype(name="q8_1", bits=9.0, compute="int8")


def with_stored_formats(model: Model, tensors: Mapping[str, StoredTensor]) -> Model:
    """The model stored as in the file, with a note if file and fields disagree on the number of parameters or bytes."""
    graph = model.graph(decode(1.0, 0.0))
    blocks = {block.name: block for block in graph.blocks}
    numbers = {layer.name: layer.numbers or tuple(range(layer.repeats)) for layer in model.layers}
    variants = {name: _variants(block, numbers.get(name), tensors) for name, block in blocks.items()}
    stored = replace(model, checkpoint=Checkpoint(variants=variants), named_format="the formats of the file")
    return replace(stored, notes=(*stored.notes, *_disagreement(stored, tensors)))


def dtype_of(tensor: StoredTensor) -> Dtype:
    """The number format of a tensor, with the bits of its blocks: `Q4_K` has 144 bytes per 256 elements."""
    digits = re.search(r"\d", tensor.format)
    compute = f"int{digits[0]}" if digits else "int8"
    return PLAIN.get(tensor.format) or Dtype(name=tensor.format.lower(), bits=tensor.bits, compute=compute)


def _variants(block: Block, layers: tuple[int, ...] | None, tensors: Mapping[str, StoredTensor]) -> tuple[Variant, ...]:
    """The distinct combinations of formats among a block's layers, the most common first; layers: None outside."""
    names = tuple(block.weights())

    def dtypes_of(layer: int | None) -> tuple[Dtype | None, ...]:
        stored = (
            tensors.get(_stored_name(name, layer)) or tensors.get(_stored_name(name, layer, SHORT)) for name in names
        )
        return tuple(dtype_of(found) if found else None for found in stored)

    found = alike(layers if layers is not None else (None,), dtypes_of)
    return tuple(_variant(block, own, dict(zip(names, dtypes, strict=True))) for dtypes, own in found)


def _variant(block: Block, layers: Sequence[int | None], dtypes: Mapping[str, Dtype | None]) -> Variant:
    matrices = {
        operator.name: weight_access(operator).tensor.name for operator in block.operators if is_linear(operator)
    }
    formats = {name: _format(dtypes[matrix]) for name, matrix in matrices.items()}
    others = {n: dtype for n, dtype in dtypes.items() if dtype is not None and n not in matrices.values()}
    numbers = tuple(layer for layer in layers if layer is not None)
    return Variant(repeats=len(layers), formats=formats, weights=others, numbers=numbers)


def _format(stored: Dtype | None) -> Format:
    """The format of a linear layer; the inputs of quantized matrices are quantized too."""
    return Format(weights=stored, activations=None if stored is None or stored in PLAIN.values() else Q8_1)


def _stored_name(weight: str, layer: int | None, names: Mapping[str, str] = LAYER_NAMES) -> str:
    """The name in the file of a weight of the graph (`q_proj.weight`)."""
    if layer is not None and weight in WHOLE_NAMES:
        return f"blk.{layer}.{WHOLE_NAMES[weight]}"
    operator, _, part = weight.replace(BUFFER, ".bias").rpartition(".")
    if layer is None:
        return f"{MODEL_NAMES.get(operator, operator)}.{part}"
    return f"blk.{layer}.{names.get(operator, operator)}.{part}"


def _disagreement(model: Model, tensors: Mapping[str, StoredTensor]) -> tuple[str, ...]:
    """A note if the tensors of the file hold other parameters or bytes than the model that its fields describe."""
    counted = [tensor for name, tensor in tensors.items() if not name.startswith(UNCOUNTED)]
    held = sum(tensor.elements for tensor in counted), sum(tensor.elements * tensor.bits / 8.0 for tensor in counted)
    weights = tuple(model.graph(decode(1.0, 0.0)).stored_weights())
    elements = sum(t.elements * times for t, times in weights)
    described = elements, sum(t.elements * t.dtype.bytes * times for t, times in weights)
    if held == described:
        return ()
    return (
        f"the file holds {held[0]:,} parameters in {held[1]:,.0f} bytes, its fields describe {described[0]:,.0f} in "
        f"{described[1]:,.0f}; the fields are used",
    )
