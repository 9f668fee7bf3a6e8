"""Feed-forward weights that live on flash, of which a token reads what it needs and the last ones did not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Place
from llmviewer.core.kinds import OperatorRole
from llmviewer.formats.linear import is_matrix
from llmviewer.ops.transfer import TransferShape, load
from llmviewer.techniques.offload.places import elsewhere
from llmviewer.techniques.sparsity.contextual_sparsity import union

#: The matrices whose rows or columns are neurons.
NEURONS = (OperatorRole.FEED_FORWARD_INPUT, OperatorRole.FEED_FORWARD_OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flash:
    """kept: share of the neurons in memory, those that the tokens of a window used.  fresh: share that a token needs
    beside them.  Defaults: OPT-6.7B with a window of 5 tokens, in the paper's section 4.1."""

    kept: float = 0.24
    fresh: float = 0.024


def from_flash(flash: Flash, shape: TransferShape) -> Pass:
    """Of the feed-forward matrices all is on the disk and `kept` of it in memory too; T tokens read 1 - (1 - fresh)^T.

    Reading waits for the predictor, and computing for what is read: nothing overlaps.  shape: whether that
    memory is behind a link, or the disk fills it at once.  Bundled rows and columns are read at the disk's rate.
    Source: LLM in a flash, arXiv 2312.11514.
    """

    def change(graph: Graph) -> Graph:
        if not any(op.role is OperatorRole.FEED_FORWARD_INPUT for _, op in graph):
            raise UserError("--offload flash: this model has no dense feed-forward part")
        return graph.map_blocks(lambda block: _read_anew(block, flash, shape) if block.is_layer else block)

    return change


def _read_anew(block: Block, flash: Flash, shape: TransferShape) -> Block:
    needed: list[Access] = []
    operators = tuple(_from_disk(op, flash, needed) if op.role in NEURONS else op for op in block.operators)
    if not needed:
        return block
    copy = load("load_neurons", needed, shape, buffers=0.0)
    return replace(block, operators=(copy, *operators))


def _from_disk(operator: Operator, flash: Flash, needed: list[Access]) -> Operator:
    """The product with what is kept of its matrix; notes what it reads from the disk."""
    reads = []
    for access in operator.reads:
        tensor = access.tensor
        if not is_matrix(access):
            reads.append(access)
            continue
        share = union(flash.fresh, operator.output_shape[0])
        needed.append(Access(elsewhere(tensor, Place.DISK), tensor.elements * share))
        reads.append(Access(replace(tensor, elements=tensor.elements * flash.kept), access.elements))
    return replace(operator, reads=tuple(reads))
