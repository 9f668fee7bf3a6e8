"""Graph pass that changes the number formats of weights, inputs of linear layers and KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass
from llmviewer.formats.cache import with_cache
from llmviewer.formats.linear import Format, in_dtype, with_formats
from llmviewer.ops.gemm import EXPERT_PREFIX

#: Operator of the head, and the weight of the table of tokens.
HEAD, TABLE = "lm_head", "embedding.weight"


@frozen
class QuantizationScheme:
    """Number formats by role; None keeps the format of the checkpoint, 16 bits are the model's own 16-bit dtype.

    name: shown in results (`w4a16`, `awq`, `fp8`).  cache: integer dtypes do not include their scales, which depend on
    the width of a head.  values: format of the cached values, where it is not that of the keys.  embedding, head:
    stored formats of the table of tokens and of lm_head (one tied table: the head's).  experts: format of routed
    experts, where it is not that of the weights.  kept: names of linear layers that keep the checkpoint's format.
    caveat: what a prediction with the formats alone leaves out, in a sentence.
    """

    name: str
    weights: Dtype | None = None
    activations: Dtype | None = None
    cache: Dtype | None = None
    values: Dtype | None = None
    embedding: Dtype | None = None
    head: Dtype | None = None
    experts: Dtype | None = None
    kept: tuple[str, ...] = ()
    caveat: str = ""

    @property
    def is_of_products(self) -> bool:
        """Whether it sets formats of weights and inputs of linear layers alone."""
        others = (self.cache, self.values, self.embedding, self.head, self.experts)
        return not self.kept and all(one is None for one in others)


def quantize(scheme: QuantizationScheme, own: Mapping[str, QuantizationScheme] | None = None) -> Pass:
    """Change the number formats of the linear layers and the KV cache to those of `scheme`.

    Weights: matrices of linear layers, including routed and shared experts; not the router, the gate of a shared
    expert, embeddings, lm_head, norms, biases.  Weights stored in fewer bits than they are multiplied in are converted
    on the vector units.  Activations: inputs of the same layers, written by one `<input>_quantize` operator for all
    readers; outputs, residual stream, norms and attention keep their dtype.  A product runs in the compute class of
    both operands if they share one, else in that of the wider one.  Cache: keys, values, latents; attention computes
    in 16 bits.

    own: schemes of linear layers, by operator, that do not have the one of the others.

    Must run before passes that read stored bytes (flash_attention) or merge operators (fuse).
    """

    def format_of(operator: Operator) -> Format:
        one = (own or {}).get(operator.name, scheme)
        routed = one.experts if operator.name.startswith(EXPERT_PREFIX) else None
        own_format = Format(weights=routed or one.weights, activations=one.activations)
        return Format() if operator.name in one.kept else own_format

    def change(block: Block) -> Block:
        if block.is_layer and (own or scheme.weights or scheme.activations):  # embeddings and head keep their dtype
            block = with_formats(block, format_of)
        return block if scheme.cache is None else with_cache(block, scheme.cache, scheme.values)

    def changed(graph: Graph) -> Graph:
        layers = graph.map_blocks(change)
        return layers if scheme.head is None else _with_ends(layers, scheme)

    return changed


def _with_ends(graph: Graph, scheme: QuantizationScheme) -> Graph:
    """The graph with the formats of the scheme for the table of tokens and lm_head."""
    reads = {access.tensor.name for _, operator in graph if operator.name == HEAD for access in operator.reads}
    head = Format(weights=scheme.head, activations=scheme.activations)
    table = scheme.head if TABLE in reads else scheme.embedding

    def stored(access: Access) -> Access:
        return in_dtype(access, table) if access.tensor.name == TABLE and table is not None else access

    def change(block: Block) -> Block:
        if block.is_layer:
            return block
        names = {operator.name for operator in block.operators}
        changed = with_formats(block, lambda op: head if op.name == HEAD else Format()) if HEAD in names else block
        operators = (op.having(reads=tuple(map(stored, op.reads))) for op in changed.operators)
        return replace(changed, operators=tuple(operators))

    return graph.map_blocks(change)
