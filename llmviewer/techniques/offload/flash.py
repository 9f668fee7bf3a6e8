"""Feed-forward weights on a flash disk, of which a token reads only neurons that recent tokens did not use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.core.counts import total
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Place
from llmviewer.core.kinds import OperatorRole
from llmviewer.formats.linear import is_weight_matrix, weight_access
from llmviewer.ops.transfer import TransferShape, load
from llmviewer.techniques.offload.places import offloaded_tensor
from llmviewer.techniques.sparsity.neurons import union_share

#: The matrices whose rows or columns are neurons.
NEURONS = (OperatorRole.FEED_FORWARD_INPUT, OperatorRole.FEED_FORWARD_OUTPUT)


@frozen
class Flash:
    """Shares of the neurons of a layer that are in memory and that a token reads from the disk.

    kept: neurons in memory, used by the tokens of a window.  fresh: further neurons that a token needs.  Defaults:
    OPT-6.7B with a window of 5 tokens, in section 4.1 of arXiv 2312.11514.
    """

    kept: float = 0.24
    fresh: float = 0.024


def load_neurons_from_disk(flash: Flash, shape: TransferShape) -> Pass:
    """Store the feed-forward matrices on the disk and `kept` of them in memory; T tokens read 1 - (1 - fresh)^T.

    Reading waits for the predictor and computing waits for the read neurons: nothing overlaps.  shape: whether the
    memory is behind a link or filled by the disk directly.  A request reads the row and column of one neuron, bundled;
    it takes its time at the disk's sequential rate, or at the disk's rate of requests.  Deleting and adding neurons in
    memory is not counted.  Source: LLM in a flash, arXiv 2312.11514.
    """

    def change(graph: Graph) -> Graph:
        if not any(op.role is OperatorRole.FEED_FORWARD_INPUT for _, op in graph):
            raise UserError("--offload flash: this model has no dense feed-forward part")
        return graph.map_blocks(lambda block: _load_neurons(block, flash, shape) if block.is_layer else block)

    return change


def _load_neurons(block: Block, flash: Flash, shape: TransferShape) -> Block:
    needed: list[Access] = []
    operators = tuple(_from_disk(op, flash, needed) if op.role in NEURONS else op for op in block.operators)
    if not needed:
        return block
    bundle = replace(shape, request_bytes=_bundle_bytes(block))
    copy = load("load_neurons", needed, bundle, buffers=0.0)
    return replace(block, operators=(copy, *operators))


def _bundle_bytes(block: Block) -> float:
    """Bytes of one neuron: its rows and columns in all feed-forward matrices of a layer."""
    matrices = [a.tensor for op in block.operators if op.role in NEURONS for a in op.reads if is_weight_matrix(a)]
    down = next(op for op in block.operators if op.role is NEURONS[1])
    neurons = weight_access(down).tensor.elements / down.output_shape[-1]
    return float(np.max(total(t.elements * t.dtype.bytes for t in matrices) / neurons))


def _from_disk(operator: Operator, flash: Flash, needed: list[Access]) -> Operator:
    """The product with the part of its matrix in memory; appends its disk reads to `needed`."""
    reads = []
    for access in operator.reads:
        tensor = access.tensor
        if not is_weight_matrix(access):
            reads.append(access)
            continue
        share = union_share(flash.fresh, operator.output_shape[0])
        needed.append(Access(offloaded_tensor(tensor, Place.DISK), tensor.elements * share))
        reads.append(Access(replace(tensor, elements=tensor.elements * flash.kept), access.elements))
    return replace(operator, reads=tuple(reads))
