"""Graphs as they run: counts of zero for blocks that a pass does not run."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.ir import Access, Block, Graph


def ran(graph: Graph) -> Graph:
    """The graph with counts of zero in the passes that do not run a block; the last step of its preparation.

    Until then every block has the sizes of a pass that runs it, so that graph passes divide by no zero.
    """
    if all(_always(block) for block in graph.blocks):
        return graph
    return graph.map_blocks(lambda block: block if _always(block) else _where(block))


def _always(block: Block) -> bool:
    return isinstance(block.where, float) and block.where == 1.0


def _where(block: Block) -> Block:
    def accesses(listed: tuple[Access, ...]) -> tuple[Access, ...]:
        return tuple(Access(a.tensor, a.elements * block.where) for a in listed)

    operators = (
        op.map_work(
            lambda count: count * block.where,
            reads=accesses(op.reads),
            writes=accesses(op.writes),
            where=op.where * block.where,
        )
        for op in block.operators
    )
    return replace(block, operators=tuple(operators))
