"""Inputs of MXFP4 experts in 8 bit, as engines quantize them on chips that multiply both formats."""

from __future__ import annotations

from llmviewer.core import dtypes
from llmviewer.core.ir import Block, Graph, Operator
from llmviewer.formats.linear import Format, with_formats
from llmviewer.ops.gemm import is_routed

#: OCP Microscaling v1.0: 32 elements share one 8-bit scale.
MXFP8 = dtypes.scaled("fp8", 8, group=32.0, scale_bits=8.0, name="mxfp8")


def quantize_expert_inputs(graph: Graph) -> Graph:
    """Quantize the inputs of experts stored as MXFP4 to MXFP8, 8.25 bits an element.

    Source: get_mxfp4_quant_algo of TensorRT-LLM, W4A8_MXFP4_MXFP8 from SM 100 on,
    https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/model_config.py
    """
    return graph.map_blocks(_quantized)


def _quantized(block: Block) -> Block:
    if not any(map(_is_mxfp4_expert, block.operators)):
        return block
    return with_formats(block, lambda op: Format(activations=MXFP8) if _is_mxfp4_expert(op) else Format())


def _is_mxfp4_expert(operator: Operator) -> bool:
    return is_routed(operator) and any(a.tensor.dtype.name == "mxfp4" for a in operator.reads)
