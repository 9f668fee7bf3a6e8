"""Store weights, take the inputs of linear layers, keep the cache in other number formats."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Block, Pass
from llmviewer.formats.cache import with_cache
from llmviewer.formats.linear import Format, with_formats


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationScheme:
    """Number formats by role; None leaves a role as the checkpoint has it, 16 bits are the model's own 16-bit dtype.

    name: as results list it (`w4a16`, `awq`, `fp8`).  cache: integers below 16 bit are given without their scales,
    which depend on the width of a head.
    """

    name: str
    weights: Dtype | None = None
    activations: Dtype | None = None
    cache: Dtype | None = None


def quantize(scheme: QuantizationScheme) -> Pass:
    """Run the linear layers of all layers in the formats of `scheme`, over those the checkpoint has.

    Weights: matrices of linear layers, routed and shared experts included; not the router, the gate of a shared
    expert, embeddings, lm_head, norms, biases.  Weights stored in fewer bits than they are multiplied in are converted
    on the vector units.  Activations: inputs of the same layers, made by `<input>_quantize` once for all that read
    them; outputs, residual stream, norms and attention keep their dtype.  A product runs in the class that both
    operands share, else in that of the wider one.  Cache: keys, values, latents; attention computes in 16 bit.

    Goes before passes that look at stored bytes (flash_attention) or merge operators (fuse).
    """
    wanted = Format(weights=scheme.weights, activations=scheme.activations)

    def change(block: Block) -> Block:
        if wanted != Format() and block.scope != "model":  # embeddings and head
            block = with_formats(block, lambda _: wanted)
        return block if scheme.cache is None else with_cache(block, scheme.cache)

    return lambda graph: graph.map_blocks(change)
