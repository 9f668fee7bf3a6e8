"""Graph pass that changes the number formats of weights, inputs of linear layers and KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Block, Pass
from llmviewer.formats.cache import with_cache
from llmviewer.formats.linear import Format, with_formats


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationScheme:
    """Number formats by role; None keeps the format of the checkpoint, 16 bits are the model's own 16-bit dtype.

    name: shown in results (`w4a16`, `awq`, `fp8`).  cache: integer dtypes do not include their scales, which depend on
    the width of a head.
    """

    name: str
    weights: Dtype | None = None
    activations: Dtype | None = None
    cache: Dtype | None = None


def quantize(scheme: QuantizationScheme) -> Pass:
    """Change the number formats of the linear layers and the KV cache to those of `scheme`.

    Weights: matrices of linear layers, including routed and shared experts; not the router, the gate of a shared
    expert, embeddings, lm_head, norms, biases.  Weights stored in fewer bits than they are multiplied in are converted
    on the vector units.  Activations: inputs of the same layers, written by one `<input>_quantize` operator for all
    readers; outputs, residual stream, norms and attention keep their dtype.  A product runs in the compute class of
    both operands if they share one, else in that of the wider one.  Cache: keys, values, latents; attention computes
    in 16 bits.

    Must run before passes that read stored bytes (flash_attention) or merge operators (fuse).
    """
    formats = Format(weights=scheme.weights, activations=scheme.activations)

    def change(block: Block) -> Block:
        if formats != Format() and block.is_layer:  # embeddings and head keep their dtype
            block = with_formats(block, lambda _: formats)
        return block if scheme.cache is None else with_cache(block, scheme.cache)

    return lambda graph: graph.map_blocks(change)
